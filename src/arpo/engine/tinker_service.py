"""One connection to a Tinker server: what it can do, the model that it trains for us, and samplers of that model.

Engine and learner share it, and the loop hands it from one to the other as the policy's "weights", since those never
leave the server. All use of the SDK is here and in the two that hold this object, so that without the SDK everything
else can be imported; and all waiting goes through `Waiter`.
"""

import importlib.metadata
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from arpo.engine.http import is_loopback
from arpo.engine.settings import TinkerSettings
from arpo.engine.tinker_features import Features, check_sdk, choose_model, features_of
from arpo.engine.tinker_trouble import Waiter
from arpo.errors import ConfigError, EngineDownError

_NO_KEY = "tml-none"
"""The SDK insists on a key of this form; SkyRL's server never looks at it."""


@dataclass(frozen=True, slots=True, eq=False)
class Passage:
    """One sequence for a training pass: tokens `[T]`; arrays `[T - 1]` for the predictions of tokens 1 to T - 1.

    `weight`: what the server divides by where it takes means, and what a pass that only scores is given; None where a
    token counts by its advantage alone. `advantage`, `logprob`: None for a pass that only scores.
    """

    tokens: np.ndarray
    weight: np.ndarray | None
    advantage: np.ndarray | None = None
    logprob: np.ndarray | None = None


class TinkerService:
    """Talks to the server that `settings` name. `seed`: of the adapter's start.

    Raises ConfigError if the SDK is missing or of the wrong version, or the server lacks the base model;
    EngineDownError if it does not answer.
    """

    def __init__(self, settings: TinkerSettings, model_path: str, *, seed: int) -> None:
        self.settings, self._seed = settings, seed & 0x7FFFFFFF
        self.sdk = _sdk()
        self.waiter = Waiter(settings)
        key = os.environ.get(settings.key_variable, "").strip()
        self.features = _ask(settings, key)
        self.sdk_version = importlib.metadata.version("tinker")
        check_sdk(self.sdk_version, self.features, settings.base_url)
        if not key and not self.features.skyrl:
            raise ConfigError(
                f"{settings.base_url} wants a key: put it into the environment variable {settings.key_variable}"
            )
        self.base_model = choose_model(self.features, settings, model_path)
        self._client = self.waiter.call(
            "connecting", lambda: self.sdk.ServiceClient(base_url=settings.base_url, api_key=key or _NO_KEY)
        )
        self._training: Any = None
        self._base: Any = None

    # --- the model that is trained -------------------------------------------------------------------------------

    @property
    def training(self) -> Any:
        """The SDK's client of the model that is trained; made at the server when it is asked for first."""
        if self._training is None:
            self._training = self.waiter.call("creating the adapter", self._create)
        return self._training

    def _create(self) -> Any:
        return _settled(
            self._client.create_lora_training_client(
                base_model=self.base_model, rank=self.settings.rank, seed=self._seed
            )
        )

    def forward(self, rows: Sequence[Passage]) -> list[np.ndarray]:
        """Log-probs of tokens 1 to T - 1 of each row under the trained model as it is now, float32 `[T - 1]`."""
        training, data = self.training, self._data(rows)
        made = self.waiter.call("forward", lambda: training.forward(data, "cross_entropy").result())
        return self._logprobs(made, rows)

    def forward_backward(
        self, rows: Sequence[Passage], loss: str, config: Mapping[str, float] | None
    ) -> list[np.ndarray]:
        """Add the gradient of these rows' loss; log-probs as from `forward`, before any step."""
        training, data = self.training, self._data(rows)
        made = self.waiter.call("forward_backward", lambda: training.forward_backward(data, loss, config).result())
        return self._logprobs(made, rows)

    def step(self, **adam: float) -> dict[str, float]:
        """One AdamW step with the gradient that was added up; the server's own metrics."""
        training, params = self.training, self.sdk.types.AdamParams(**adam)
        made = self.waiter.call("optim_step", lambda: training.optim_step(params).result())
        return dict(made.metrics or {})

    def save(self, name: str) -> str:
        """Weights and optimiser under `name` at the server; the path by which `load` finds them."""
        training = self.training
        return str(self.waiter.call("save_state", lambda: training.save_state(name).result()).path)

    def load(self, path: str) -> None:
        """Train on from what `save` wrote, which may be another run's or another process's."""
        make = self._client.create_training_client_from_state_with_optimizer
        self._training = self.waiter.call(f"loading {path}", lambda: _settled(make(path)))

    @property
    def clips(self) -> bool:
        """True if `step` may be given `grad_clip_norm`."""
        return self.features.clips and "grad_clip_norm" in inspect.signature(self.sdk.types.AdamParams).parameters

    # --- samplers ------------------------------------------------------------------------------------------------

    def sampler(self, *, trained: bool) -> Any:
        """An SDK client that samples from the trained model as it is now, or from `settings.weights` or the base."""
        if trained:
            training = self.training
            return self.waiter.call(
                "save_weights_for_sampler", lambda: _settled(training.save_weights_and_get_sampling_client())
            )
        if self.settings.weights is None:
            return self.base
        path = self.settings.weights
        return self.waiter.call(
            f"sampling from {path}", lambda: _settled(self._client.create_sampling_client(model_path=path))
        )

    @property
    def base(self) -> Any:
        """An SDK client that samples from the base model."""
        if self._base is None:
            make, name = self._client.create_sampling_client, self.base_model
            self._base = self.waiter.call(f"sampling from {name}", lambda: _settled(make(base_model=name)))
        return self._base

    def asks_top_k(self, sampler: Any) -> bool:
        """True if the SDK has a way to ask for top log-probs and the server takes it."""
        return self.features.top_k and "topk_sample_logprobs" in inspect.signature(sampler.sample).parameters

    def base_logprobs(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Log-probs of tokens 1 to T - 1 of each row `[T]` under the base model."""
        base = self.base
        asked = [base.compute_logprobs(self.prompt(row)) for row in rows]
        found = self.waiter.call("scoring by the base model", lambda: [future.result() for future in asked])
        return [
            np.array([np.nan if value is None else value for value in values][-(len(row) - 1) :], np.float32)
            for values, row in zip(found, rows, strict=True)
        ]

    def prompt(self, tokens: Sequence[int] | np.ndarray) -> Any:
        """Token ids as the SDK wants them."""
        return self.sdk.types.ModelInput.from_ints([int(token) for token in tokens])

    # --- rows ----------------------------------------------------------------------------------------------------

    def _data(self, rows: Sequence[Passage]) -> list[Any]:
        types = self.sdk.types
        return [types.Datum(model_input=self.prompt(row.tokens[:-1]), loss_fn_inputs=inputs(row)) for row in rows]

    def _logprobs(self, made: Any, rows: Sequence[Passage]) -> list[np.ndarray]:
        found = [np.asarray(output["logprobs"].data, np.float32) for output in made.loss_fn_outputs]
        if [len(logp) for logp in found] != [len(row.tokens) - 1 for row in rows]:
            raise EngineDownError(
                f"{self.settings.base_url} returned log-probs for other tokens than it was sent; its version does not "
                "fit the SDK's (see docs/tinker.md)"
            )
        return found


def inputs(row: Passage) -> dict[str, np.ndarray]:
    """What a loss function of the API is given beside the tokens 0 to T - 2: targets are the tokens 1 to T - 1."""
    made = {"target_tokens": row.tokens[1:].astype(np.int64)}
    named = {"weights": row.weight, "advantages": row.advantage, "logprobs": row.logprob}
    return made | {name: value.astype(np.float32) for name, value in named.items() if value is not None}


def _sdk() -> Any:
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    try:
        import tinker
    except ImportError as error:
        raise ConfigError(
            'engine.type = "tinker" needs the package tinker: pip install "arpo[tinker]" (for SkyRL 0.3.0 '
            '"tinker>=0.18,<0.25")'
        ) from error
    return tinker


def _ask(settings: TinkerSettings, key: str) -> Features:
    """The server's description of itself, without the SDK."""
    headers = {"x-api-key": key} if key else {}
    try:
        with httpx.Client(
            base_url=settings.base_url, headers=headers, timeout=60, trust_env=not is_loopback(settings.base_url)
        ) as client:
            described = client.get("/openapi.json")
            able = client.get("/api/v1/get_server_capabilities")
    except httpx.RequestError as error:
        raise EngineDownError(
            f"{settings.base_url}: no answer ({type(error).__name__}); start the server (docs/tinker.md), or set "
            "engine.base_url to where it listens"
        ) from error
    if able.status_code in (401, 403):
        raise EngineDownError(
            f"{settings.base_url}: status {able.status_code}; set the environment variable {settings.key_variable} to "
            "a key that this server accepts"
        )
    if able.status_code != 200:
        raise EngineDownError(
            f"{settings.base_url}: status {able.status_code} for its capabilities, so this is no Tinker server; check "
            "engine.base_url (without a path)"
        )
    return features_of(_json(described), _json(able) or {})


def _json(response: httpx.Response) -> Mapping[str, Any] | None:
    try:
        found = response.json() if response.status_code == 200 else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _settled(made: Any) -> Any:
    """What newer SDKs promise and older ones return."""
    return made.result() if hasattr(made, "result") else made
