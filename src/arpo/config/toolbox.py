"""From a configuration to its tools, without anything that a model needs: a command about tools starts at once."""

from collections.abc import Mapping
from pathlib import Path

from arpo.config.schema import Config
from arpo.tools.settings import SearchSettings
from arpo.tools.toolbox import ToolBox


def build_toolbox(config: Config) -> ToolBox:
    """All configured tools. Raises ToolSetupError naming the tool and the remedy."""
    from arpo.tools.registry import build

    return build(config.tools, _corpora(config))


def _corpora(config: Config) -> Mapping[str, Path]:
    """Folders of the corpora known by name; the factbook's index is built when it is needed first."""
    if not any(isinstance(tool, SearchSettings) and tool.corpus == "factbook" for tool in config.tools):
        return {}
    from arpo.data.factbook.corpus import ensure_index, index_folder

    ensure_index()
    return {"factbook": index_folder()}
