"""What a Tinker server can do, and whether this SDK can speak to it: asked once, before anything is paid for.

The API is one, its servers are several. A server built on FastAPI describes its requests in `/openapi.json`, and
SkyRL's is known by the title it has there; a field that it does not list is one that it would silently drop. Where a
server describes nothing (hosted services), what the API's documentation promises is taken for granted.

The SDK has changed its wire format under the same calls, so versions are compared, too: from 0.25 on `forward_backward`
is sent as protobuf, which SkyRL 0.3.0 answers with 422, and from 0.26 on a sample's answer must name its sequences.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from arpo.engine.settings import TinkerSettings
from arpo.errors import ConfigError

Reduction = Literal["sum", "sequence_mean"]

SKYRL_TITLE = "Tinker API Mock"
SKYRL_SDK = ((0, 18), (0, 25))
"""SDK versions that speak with SkyRL 0.3.0: from the first, below the second."""
OTHER_SDK = ((0, 18), None)
TOP_K_SDK = (0, 27)
"""The first SDK that was seen to ask for the top log-probs of sampled tokens (0.30.4 does, 0.26.2 does not)."""

_DOCUMENTED = frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"})


@dataclass(frozen=True, slots=True)
class Features:
    """What the server takes. `losses`: names of its loss functions; `clips`: the optimiser clips gradients; `top_k`:
    top log-probs of sampled tokens can be asked for; `models`: base models by name, with their context if it is told.
    """

    skyrl: bool
    losses: frozenset[str]
    clips: bool
    top_k: bool
    models: Mapping[str, int | None]

    def reduction(self, settings: TinkerSettings) -> Reduction:
        """How the server makes one loss of its tokens."""
        if settings.reduction != "auto":
            return settings.reduction
        return "sequence_mean" if self.skyrl else "sum"


def features_of(description: Mapping[str, Any] | None, capabilities: Mapping[str, Any]) -> Features:
    """From the server's OpenAPI description (None: it has none) and its answer to `get_server_capabilities`."""
    models = {
        str(model["model_name"]): model.get("max_context_length")
        for model in capabilities.get("supported_models", ())
        if model.get("model_name")
    }
    if description is None:
        return Features(False, _DOCUMENTED, clips=True, top_k=True, models=models)
    known = _Schemas(description)
    return Features(
        skyrl=description.get("info", {}).get("title") == SKYRL_TITLE,
        losses=known.choices("ForwardBackwardInput", "loss_fn") or _DOCUMENTED,
        clips=known.has("AdamParams", "grad_clip_norm"),
        top_k=known.has("SampleRequest", "topk_sample_logprobs"),
        models=models,
    )


class _Schemas:
    """The request bodies that a server describes."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._schemas: Mapping[str, Any] = description.get("components", {}).get("schemas", {})

    def _field(self, name: str, field: str) -> Mapping[str, Any] | None:
        found = self._schemas.get(name, {}).get("properties", {}).get(field)
        return found if isinstance(found, dict) else None

    def has(self, name: str, field: str) -> bool:
        """True if the field is listed, or the body is not described at all."""
        return name not in self._schemas or self._field(name, field) is not None

    def choices(self, name: str, field: str) -> frozenset[str]:
        return frozenset((self._field(name, field) or {}).get("enum", ()))


def choose_model(features: Features, settings: TinkerSettings, model_path: str) -> str:
    """Name of the base model at the server. ConfigError if it does not have it."""
    wanted = settings.base_model or model_path
    if not features.models or wanted in features.models:
        return wanted
    if settings.base_model is None and len(features.models) == 1:
        return next(iter(features.models))
    names = ", ".join(sorted(features.models)[:20])
    raise ConfigError(
        f"{settings.base_url} does not have the base model {wanted!r}; it has {names}. Set engine.base_model to one of "
        "them (and model.path to where its tokenizer is)"
    )


def check_sdk(version: str, features: Features, base_url: str) -> None:
    """ConfigError, with what to install, if this SDK and this server do not understand each other."""
    lowest, above = SKYRL_SDK if features.skyrl else OTHER_SDK
    found = parse_version(version)
    if found >= lowest and (above is None or found < above):
        return
    bounds = f"tinker>={_text(lowest)}" + (f",<{_text(above)}" if above else "")
    server = "SkyRL's Tinker server (0.3.0)" if features.skyrl else "a Tinker server"
    raise ConfigError(
        f"the SDK tinker {version} does not speak the protocol of {server} at {base_url}; "
        f'install one that does: pip install "{bounds}"'
    )


def parse_version(version: str) -> tuple[int, ...]:
    """Its leading numbers: (0, 24, 1) of "0.24.1.dev3"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
