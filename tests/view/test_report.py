"""The report: self-contained, safe, complete, honest; and the chart writer beneath it."""

import errno
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from random_trees import call, segment, small_tree
from sample_report import sample_report

from arpo.errors import StorageError
from arpo.evaluate.intervals import wilson
from arpo.evaluate.result import Accuracy
from arpo.study.branches import branch_statistics
from arpo.tree import Finish, Outcome, RolloutTree, Source
from arpo.view import charts, prose
from arpo.view.data import Example, MethodRun, Point, ReportData
from arpo.view.report import render, write_picture, write_report
from arpo.view.svg import Plot, Scale, marker
from arpo.view.text import duration, number, percent, points, safe, short
from arpo.view.tree_html import pieces, shade, tree_html

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Text, tags with attributes, and a check that every element is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def data() -> ReportData:
    return sample_report(trees=12)


@pytest.fixture(scope="module")
def html(data) -> str:
    return render(data)


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_the_page_asks_for_nothing_and_runs_nothing(html, page):
    assert not re.search(r"https?://|//cdn|@import|url\(", html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on") or name in ("src", "srcset")]
    assert all(attrs["href"].startswith("#") for tag, attrs in page.tags if tag == "a")
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_every_section_is_there_and_every_link_leads_somewhere(page):
    identifiers = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(identifiers) == len(set(identifiers))
    for section in ("accuracy", "entropy", "branches", "calls", "trees", "how"):
        assert section in identifiers
    for _, attrs in page.tags:
        for reference in (attrs.get("href", "#main")[1:], attrs.get("aria-labelledby")):
            assert reference is None or reference in identifiers


def test_charts_have_names_and_headings_do_not_skip(page):
    charts_ = [attrs for tag, attrs in page.tags if tag == "svg" and attrs.get("class") == "chart"]
    assert len(charts_) == 3 + 2 + 3 + 2
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts_)
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert max(np.diff(levels)) <= 1
    assert next(attrs for tag, attrs in page.tags if tag == "html")["lang"] == "en"


def test_it_shows_the_figures_and_both_themes(data, html):
    for run in data.runs.values():
        assert percent(run.final.accuracy) in html
        assert f"{100 * run.final.ci95.low:.1f} to {100 * run.final.ci95.high:.1f}" in html
    assert f"{data.runs['arpo'].entropy['search'].first:.3f}" in html
    assert f"{data.runs['arpo'].calls.measured:.3f}" in html
    assert html.count('<article class="tree"') == 3
    assert "prefers-color-scheme: dark" in html
    assert data.cold_start[:40] in html
    assert "One training run (one seed) per method" in html
    assert safe(data.config) in html


def evil_tree() -> RolloutTree:
    nasty = call("python", arguments="</code><script>alert(1)</script>")
    segments = (
        segment([1], Source.PROMPT),
        segment([2], Source.POLICY, 0, finish=Finish.CALL),
        segment([3], Source.TOOL, 1, event=nasty),
        segment([4], Source.POLICY, 2, entropies=[1.0]),
    )
    meta = {"question": "<img src=x onerror=alert(1)>", "gold": "<b>"}
    outcome = Outcome(1.0, "<svg onload=alert(1)>\x1b[2J\u202e", {"<i>": 1.0})
    return RolloutTree("e", segments, (3,), outcomes=(outcome,), meta=meta).validate()


def test_what_a_model_wrote_cannot_become_markup(data):
    example = Example(evil_tree(), lambda tokens: "<script>alert('x')</script>\"&" * len(tokens), "<u>")
    html = render(
        replace(data, examples=(example,), title="<script>", facts={"<s>": "<script>"}, config="</pre><script>")
    )
    page = Page(html)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "u", "s", "i"}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "⟨U+001B⟩" in html
    assert "<script>alert('x')</script>" in "".join(page.text)


def test_safe_shows_control_characters_and_keeps_line_breaks():
    assert safe("a\tb\nc") == "a\tb\nc"
    assert safe("\x00\u2066\ud800") == "⟨U+0000⟩⟨U+2066⟩⟨U+D800⟩"
    assert safe("\"'<&>") == "&quot;&#x27;&lt;&amp;&gt;"


def test_a_tree_shows_its_calls_decisions_and_rewards():
    tree = small_tree()
    html = tree_html(Example(tree, lambda tokens: "".join(f"[{t}]" for t in tokens), "why"), 1)
    for token in range(4, 16):
        assert html.count(f"[{token}]") == 1, "what trajectories share is written once"
    assert "branched, 1 opened" in html
    assert "ΔH +0.2000, P 0.5400" in html
    assert html.count('class="leaf"') == 3
    assert "How many?" in html
    assert 'title="0.50 nats"' in html
    assert Page(html).open == []


def test_a_tree_without_rewards_and_with_a_failure():
    tree = small_tree()
    failed = replace(tree.segments[3], finish=Finish.ERROR, event=call("python"))
    broken = replace(tree, segments=(*tree.segments[:3], failed, *tree.segments[4:]), outcomes=())
    html = tree_html(Example(broken.validate(), str, ""), 1)
    assert html.count("not scored") == 3
    assert "ended: error" in html
    assert html.count('title="no reward"') > 3


def test_pieces_keep_characters_of_several_tokens_whole():
    stream = "né→x".encode()

    def decode(tokens) -> str:
        return bytes(stream[t] for t in tokens).decode("utf-8", "replace")

    assert list(pieces(decode, range(len(stream)))) == [("n", 1), ("é", 2), ("→", 3), ("x", 1)]
    assert list(pieces(decode, range(2))) == [("n", 1), ("\ufffd", 1)]


@pytest.mark.parametrize(("nats", "expected"), [(-1.0, 0), (0.0, 0), (0.375, 0.5), (1.5, 1), (9.0, 1)])
def test_shade_grows_with_the_root_of_entropy(nats, expected):
    assert shade(nats) == expected


def run(right: int, n: int = 500, tokens: int = 0, calls: int = 0, scores=()) -> MethodRun:
    return MethodRun((Point(right / n, wilson(right, n), n, 1, tokens, calls),), scores)


def test_findings_call_a_difference_one_only_if_it_is():
    runs = {"cold_start": run(200), "grpo": run(310, tokens=1000, calls=90), "arpo": run(318, tokens=1020, calls=70)}
    said = prose.findings(ReportData("t", runs))
    assert "do not overlap" in said[0]
    assert "do not overlap" in said[1]
    assert "no significant difference" in said[2]
    assert said[3].startswith("Equal token budget: GRPO sampled 1,000 tokens and executed 90 tool calls")
    far = runs | {"arpo": run(390, tokens=1500)}
    said = prose.findings(ReportData("t", far))
    assert "ARPO is ahead of GRPO" in said[2]
    assert "not at equal cost" in said[3]
    worse = runs | {"arpo": run(203)}
    assert "no significant change" in prose.findings(ReportData("t", worse))[1]
    behind = runs | {"arpo": run(240)}
    assert "GRPO is ahead of ARPO" in prose.findings(ReportData("t", behind))[2]


def test_findings_pair_by_question_when_they_can():
    first = [1.0] * 250 + [0.0] * 250
    second = [1.0] * 270 + [0.0] * 230
    paired = prose.difference(run(250, scores=tuple(first)), run(270, scores=tuple(second)))
    loose = prose.difference(run(250), run(270))
    assert paired.value == pytest.approx(loose.value) == pytest.approx(0.04)
    assert paired.significant
    assert not loose.significant
    lost = (None, *second[1:])
    assert prose.difference(run(250, scores=tuple(first)), run(270, scores=lost)).value == pytest.approx(20 / 499)
    overlap = {"cold_start": run(250, scores=tuple(first)), "arpo": run(270, scores=tuple(second))}
    assert "overlap, although the difference" in prose.findings(ReportData("t", overlap))[0]


def test_readings_follow_the_intervals(data):
    curve = data.runs["arpo"].entropy["search"]
    start = replace(curve, first=0.1, first_ci95=(0.09, 0.11))
    after = {
        "start": start,
        "search": replace(curve, first_ci95=(0.12, 0.2)),
        "python": replace(curve, first_ci95=(0, 0.05)),
    }
    assert prose.entropy_reading(after) == (
        "after search results higher than at the start; after Python results lower than at the start"
    )
    assert "not clearly different" in prose.entropy_reading({"start": start, "search": start})
    assert prose.entropy_reading({}) == "not measured"
    found = branch_statistics([small_tree()])
    assert "within noise" in prose.worth_reading(found)
    share = found.siblings
    apart = replace(found, siblings=replace(share, ci95=(0.1, 0.2)), strangers=replace(share, ci95=(0.5, 0.6)))
    apart = replace(
        apart, siblings=replace(apart.siblings, ci95=wilson(1, 50)), strangers=replace(share, ci95=wilson(40, 50))
    )
    assert "less contrast" in prose.worth_reading(apart)
    turned = replace(apart, siblings=apart.strangers, strangers=apart.siblings)
    assert "still open" in prose.worth_reading(turned)
    assert "nothing can be said" in prose.worth_reading(branch_statistics([replace(small_tree(), decisions=())]))


def test_a_report_of_one_evaluation_has_only_what_there_is():
    html = render(ReportData("One policy", {"arpo": run(10, 20)}))
    Page(html)
    assert "50.0" in html
    for missing in ("trees", "entropy", "branches", "calls", "how"):
        assert f'id="{missing}"' not in html


@pytest.mark.parametrize("runs", [{}, {"sft": run(1, 2)}, {"arpo": MethodRun(())}])
def test_report_data_refuses_what_cannot_be_shown(runs):
    with pytest.raises(ValueError, match="a report needs evaluated runs"):
        ReportData("t", runs)


def test_the_report_is_written_whole_or_not_at_all(data, html, tmp_path, monkeypatch):
    path = write_report(tmp_path / "run" / "report.html", data)
    assert path.read_text("utf-8") == html
    monkeypatch.setattr(
        "pathlib.Path.write_text", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left"))
    )
    with pytest.raises(StorageError, match=r"report\.html: cannot be written.*No space left"):
        write_report(path, data)
    assert path.read_text("utf-8") == html
    assert list(path.parent.iterdir()) == [path]


def test_the_picture_is_one_svg_that_stands_alone(data, tmp_path):
    path = write_picture(tmp_path / "docs" / "picture.svg", data)
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"GRPO", "ARPO", "tool calls executed in training"} <= set(texts)
    assert "prefers-color-scheme: dark" in path.read_text()
    assert not re.search(r"(href|src)=|@import|url\(", path.read_text())


def test_curves_begin_at_the_cold_start(data):
    found = charts.trained_points(data.runs, "grpo")
    assert found[0] == data.runs["cold_start"].final
    alone = {"grpo": data.runs["grpo"]}
    assert charts.trained_points(alone, "grpo") == list(data.runs["grpo"].points)


def test_scales_and_ticks():
    scale = Scale(0, 10, 100, 0)
    assert [scale(v) for v in (0, 5, 10)] == [100, 50, 0]
    assert scale.ticks(5) == [0, 2, 4, 6, 8, 10]
    assert Scale(0.3, 0.7, 0, 1).ticks(4) == [0.3, 0.4, 0.5, 0.6, 0.7]
    assert Scale(-0.02, 0.02, 0, 1).ticks(4) == [-0.02, -0.01, 0, 0.01, 0.02]
    assert charts.share_range([0.41, 0.63]) == (0.4, 0.7)
    assert charts.share_range([0.0, 1.0]) == (0.0, 1.0)


def test_a_plot_places_marks_in_its_frame():
    plot = Plot("p", (0, 10), (0, 1), width=120, height=100, left=10, right=10, top=10, bottom=20)
    plot.dot(10, 1, "s-x", "circle", "corner <1>")
    plot.bar(0, 5, 0, 0.5, "s-x", "half")
    svg = ET.fromstring(plot.svg("d & e"))
    circle, bar = svg.find("circle"), svg.find("rect")
    assert (circle.get("cx"), circle.get("cy")) == ("110.0", "10.0")
    assert circle.find("title").text == "corner <1>"
    assert (float(bar.get("y")), float(bar.get("height")), float(bar.get("width"))) == (45, 35, 49)
    assert svg.find("desc").text == "d & e"


@pytest.mark.parametrize(
    ("shape", "tag"), [("circle", "circle"), ("square", "rect"), ("diamond", "polygon"), ("ring", "circle")]
)
def test_markers_differ_in_shape(shape, tag):
    assert ET.fromstring(marker(shape, 1, 1, "s")).tag == tag


def test_numbers_for_people():
    assert [short(v) for v in (0, 950, 5000, 1.2e6, 0.5)] == ["0", "950", "5k", "1.2M", "0.5"]
    assert percent(0.634) == "63.4\u202f%"
    assert points(-0.021) == "\u22122.1"
    assert number(1204000) == "1,204,000"
    assert [duration(s) for s in (9, 60, 150)] == ["9\u202fs", "1\u202fmin", "2\u202fmin 30\u202fs"]


def test_a_family_that_one_policy_lacks_is_a_dash(data):
    runs = data.runs | {"grpo": replace(data.runs["grpo"], per_family={"lookup": Accuracy(0.5, wilson(5, 10), 10)})}
    html = render(replace(data, runs=runs))
    assert "<td>–</td>" in html
