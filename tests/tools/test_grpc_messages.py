"""Our few bytes of Protocol Buffers against the real library, with code that protoc has made of tool.proto."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpc_server import compiled, imported
from longhouse.tools.grpc import messages
from longhouse.tools.grpc.messages import BadMessage, ProbeResponse, RemoteFault


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = Path(tmp_path_factory.mktemp("generated"))
    compiled(folder)
    return imported(folder, "tool_pb2")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@given(TEXT, TEXT, TEXT, st.integers(0, 2**63 - 1))
def test_requests_are_read_by_the_real_library(real: Any, name: str, arguments: str, key: str, deadline: int) -> None:
    sent = messages.request(name, arguments, key, deadline)
    read = real.CallRequest.FromString(sent)
    assert (read.name, read.arguments_json, read.idempotency_key, read.deadline_unix_ms) == (
        name, arguments, key, deadline,
    )  # fmt: skip
    assert read.SerializeToString(deterministic=True) == sent
    asked = real.ProbeRequest.FromString(messages.request(name, arguments, key))
    assert (asked.name, asked.arguments_json, asked.idempotency_key) == (name, arguments, key)


@given(TEXT, TEXT, st.booleans(), st.sampled_from([None, True, False]))
def test_answers_of_the_real_library_are_read(
    real: Any, result: str, code: str, retryable: bool, happened: bool | None
) -> None:
    message = f"{code}: {result}"
    said = real.CallResponse(result_json=result)
    assert messages.call_response(said.SerializeToString()) == result
    fault = real.CallResponse(fault=real.Fault(code=code, message=message, retryable=retryable))
    assert messages.call_response(fault.SerializeToString()) == RemoteFault(code, message, retryable)
    outcome = {None: "UNKNOWN", True: "HAPPENED", False: "DID_NOT_HAPPEN"}[happened]
    probed = real.ProbeResponse(outcome=outcome, result_json=result).SerializeToString()
    assert messages.probe_response(probed) == ProbeResponse(happened, result)
    # A later version may have fields that are not known here, of every type.
    later = b"\x78\x96\x01" + b"\x7a\x02hi" + b"\x7d1234" + b"\x7912345678"
    assert messages.probe_response(later + probed) == ProbeResponse(happened, result)


@given(st.binary(max_size=60))
def test_no_bytes_do_harm(real: Any, content: bytes) -> None:
    for read in (messages.call_response, messages.probe_response):
        try:
            read(content)
        except BadMessage:
            continue


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\x01\xff",
        b"\x08\x01",
        b"\x12\x02\x08\x01",
        b"\x0b",
        b"\xff" * 11,
        b"\x28" + b"\x80" * 10 + b"\x00",
        b"\x02\x00",
        b"\x28\x00" * 1_001,
    ],
)
def test_what_is_no_answer_is_told(content: bytes) -> None:
    with pytest.raises(BadMessage):
        messages.call_response(content)


def test_an_answer_that_says_nothing_of_a_probe_is_no_decision() -> None:
    assert messages.probe_response(b"") == ProbeResponse(None, "")
    assert messages.probe_response(b"\x08\x07") == ProbeResponse(None, ""), "an outcome that a later version knows"
    assert messages.call_response(b"") == ""
