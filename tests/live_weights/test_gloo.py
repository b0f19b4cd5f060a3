"""Weights that a trainer sends to a running engine on a CPU: the backend ``"gloo"``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tests.engines import MODEL, bundled_engine
from tests.live_weights.checkpoints import changed_checkpoint
from tests.live_weights.test_engines import answers, reload_from
from tests.server.conftest import free_port
from vllm.deterministic import attach
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory
from vllm.fork.weight_transfer import GlooTrainer, GlooTrainerInitInfo
from vllm.fork.weight_transfer.group import Meeting

if TYPE_CHECKING:
    from vllm import LLM

pytestmark = pytest.mark.long


class Client:
    """What a trainer asks of an engine, of one in this process."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


class Dying(ModuleSource):
    """A trainer that ends while it sends."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for index, pair in enumerate(super().__iter__()):
            if index == 9:
                raise MemoryError("for one")
            yield pair


class Renamed(ModuleSource):
    """Weights by names that are not the model's."""

    def metadata(self) -> list[Any]:
        return [type(one)(f"no.{one.name}", one.dtype, one.shape) for one in super().metadata()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((f"no.{name}", tensor) for name, tensor in super().__iter__())


class Converted(ModuleSource):
    """Weights that are not of the dtype that was announced."""

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor.half()) for name, tensor in super().__iter__())


class Integers(ModuleSource):
    """Weights of a kind that the model does not have."""

    def metadata(self) -> list[Any]:
        return [type(one)(one.name, torch.int8, one.shape) for one in super().metadata()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor.to(torch.int8)) for name, tensor in super().__iter__())


class Part(ModuleSource):
    """Some of the weights, so that the update cannot end."""

    def metadata(self) -> list[Any]:
        return super().metadata()[:30]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return islice(super().__iter__(), 30)


@pytest.fixture(scope="module", params=[1, 2], ids=["one worker", "two workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def llm(workers: int) -> Iterator[LLM]:
    with bundled_engine(
        hf_compat=False,
        deterministic=True,
        dtype="bfloat16",
        tensor_parallel_size=workers,
        weight_transfer_config={"backend": "gloo"},
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed_checkpoint(MODEL, tmp_path_factory.mktemp("changed") / "model")


@pytest.fixture(scope="module")
def expected(llm: LLM, new_folder: Path) -> list[Any]:
    """The answers with the new weights, which are not those with the old ones."""
    before = answers(llm)
    reload_from(new_folder, llm)
    found = answers(llm)
    reload_from(MODEL, llm)
    assert answers(llm) == before
    assert found != before
    return found


def trainer_of(llm: LLM, workers: int, model: nn.Module, kind: type = ModuleSource) -> Any:
    meeting = GlooTrainerInitInfo("127.0.0.1", free_port(), 1 + workers, rank=0, timeout_s=60)
    return WeightTransferTrainerFactory.trainer_init(
        meeting, client=Client(llm), source=kind(model)
    )


def test_what_is_trained_answers(
    llm: LLM, workers: int, new_folder: Path, expected: list[Any]
) -> None:
    """The parameters of a model that trains, which has no head of its own; twice, and back."""
    old, new = (
        attach(AutoModelForCausalLM.from_pretrained(one, dtype=torch.bfloat16), training=True)
        for one in (MODEL, new_folder)
    )
    before = answers(llm)
    trainer = trainer_of(llm, workers, new)
    for _ in range(2):
        trainer.send_weights()
        assert answers(llm) == expected
    other = trainer_of(llm, workers, old)  # the engine leaves the first one
    other.send_weights()
    assert answers(llm) == before
    with pytest.raises(Exception, match="Another trainer has connected"):
        trainer.send_weights()
    with pytest.raises(RuntimeError, match="ended the connection: call trainer_init again"):
        trainer.send_weights()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Renamed, r"The weight no\.model.* Nothing was changed"),
        (Integers, r"it is torch\.int8, and the model's is torch\.bfloat16\. Nothing was changed"),
        (Converted, r"in torch\.float16 where its metadata\(\) has model\.embed_tokens"),
    ],
)
def test_wrong_weights_are_refused(
    llm: LLM, workers: int, new_folder: Path, kind: type, reason: str
) -> None:
    """Before any of them is sent: the trainer, which sends, hears of it."""
    model = AutoModelForCausalLM.from_pretrained(new_folder, dtype=torch.bfloat16)
    before = answers(llm)
    trainer = trainer_of(llm, workers, model, kind)
    with pytest.raises(Exception, match=reason):
        trainer.send_weights()
    assert answers(llm) == before


def test_updates_that_nobody_ends(
    llm: LLM, workers: int, new_folder: Path, expected: list[Any]
) -> None:
    """A trainer that connects begins anew, whatever the one before has left."""
    model = AutoModelForCausalLM.from_pretrained(new_folder, dtype=torch.bfloat16)
    llm.start_weight_update()
    with pytest.raises(Exception, match="only some were given"):
        trainer_of(llm, workers, model, Part).send_weights()
    trainer_of(llm, workers, model).send_weights()
    assert answers(llm) == expected


def test_a_trainer_that_ends_in_the_middle(
    llm: LLM, workers: int, new_folder: Path, expected: list[Any]
) -> None:
    """Requests are refused until another one has sent everything."""
    model = AutoModelForCausalLM.from_pretrained(new_folder, dtype=torch.bfloat16)
    with pytest.raises(MemoryError):
        trainer_of(llm, workers, model, Dying).send_weights()
    (output,) = llm.generate("def", use_tqdm=False)
    assert output.outputs[0].finish_reason == "error"
    assert "others have not" in str(output.outputs[0].stop_reason)
    trainer_of(llm, workers, model).send_weights()
    assert answers(llm) == expected


def test_weights_that_are_reset_answer_nothing(
    llm: LLM, workers: int, new_folder: Path, expected: list[Any]
) -> None:
    """As ``/weight_checker`` asks for it; packed weights have no checksums."""
    llm.collective_rpc("reset_weights")
    (output,) = llm.generate("def", use_tqdm=False)
    assert "The weights were reset." in str(output.outputs[0].stop_reason)
    with pytest.raises(Exception, match="have no checksums, since it keeps them packed"):
        llm.collective_rpc("compute_weight_checksums")
    model = AutoModelForCausalLM.from_pretrained(new_folder, dtype=torch.bfloat16)
    trainer_of(llm, workers, model).send_weights()
    assert answers(llm) == expected


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"world_size": 1}, "world_size=1 counts the trainer and every worker"),
        ({"port": None}, "port=None must be of type int"),
        ({"hosts": ["a"]}, "unexpected keyword argument 'hosts'"),
    ],
    ids=["nobody", "no port", "a name that is not known"],
)
def test_what_a_meeting_cannot_be(llm: LLM, info: dict[str, Any], reason: str) -> None:
    meeting = asdict(Meeting("127.0.0.1", 1, 2, 1.0, "a")) | info
    with pytest.raises(Exception, match=reason):
        llm.init_weight_transfer_engine({"init_info": meeting})


def test_an_update_without_a_trainer(llm: LLM) -> None:
    llm.shutdown_weight_transfer_engine()
    llm.start_weight_update()
    info = {"names": [], "dtype_names": [], "shapes": [], "session": ""}
    with pytest.raises(Exception, match="No trainer is connected"):
        llm.update_weights({"update_info": info})


def test_a_trainer_needs_weights(llm: LLM) -> None:
    with pytest.raises(ValueError, match="needs a source of weights"):
        GlooTrainer.trainer_init(GlooTrainerInitInfo("127.0.0.1", 1, rank=0), client=Client(llm))
