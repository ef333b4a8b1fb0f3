"""What a dialect reports of a call is kept with it, and files from before that are still read."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from arpo.data.trees import SCHEMA, read_trees, write_trees
from arpo.tree import Finish, RolloutTree, Segment, Source, ToolEvent


def tree(note: str) -> RolloutTree:
    one = np.ones(1, np.float32)
    ids = np.ones(1, np.int32)
    event = ToolEvent("search", "{}", "ok", 0.5, note=note)
    said = {"logprobs": -one, "entropies": one, "version": 0}
    segments = (
        Segment(ids, Source.PROMPT),
        Segment(ids, Source.POLICY, 0, finish=Finish.CALL, **said),
        Segment(ids, Source.TOOL, 1, event=event),
        Segment(ids, Source.POLICY, 2, finish=Finish.STOP, **said),
    )
    return RolloutTree("t", segments, (3,)).validate()


def test_a_note_is_kept(tmp_path):
    noted = tree("types, several_calls \ud800")
    write_trees(tmp_path / "x.parquet", [noted], step=0, decode=lambda ids: "x")
    (back,) = read_trees(tmp_path / "x.parquet")
    assert back.segments[2].event.note == "types, several_calls \\ud800"
    assert back.segments[2].event.facts[-1] == back.segments[2].event.note
    assert tree("").segments[2].event.facts == ("ok", "500.0 ms")


def test_files_without_notes_are_still_read(tmp_path):
    path = tmp_path / "x.parquet"
    write_trees(path, [tree("")], step=0, decode=lambda ids: "x")
    table = pq.read_table(path)
    older = pa.struct([field for field in SCHEMA.field("event").type if field.name != "note"])
    events = [
        None if event is None else {k: v for k, v in event.items() if k != "note"}
        for event in table["event"].to_pylist()
    ]
    place = table.schema.get_field_index("event")
    pq.write_table(table.set_column(place, pa.field("event", older), pa.array(events, older)), path)
    assert read_trees(path) == [tree("")]
