"""The log as it is written to a file: found by the words that people used, and safe to read line by line."""

import json
import os
import re
import subprocess
import sys

import pytest

SAID = "[Memory] 缓存目录: правила 😀"
EVIL = 'x\n{"event": "forged"}\x1b[2J\x7f\x85\x9b31m\u2028\u2029\u202e\u2066\ufeff\udc80\ud83d"'
CODE = f"""
import structlog
from longhouse.cli import running
running._set_up_logs("info")
structlog.get_logger().info("told", said={SAID!r}, evil={EVIL!r})
"""


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_record_is_one_line_of_json_with_the_words_that_were_used(encoding: str) -> None:
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, timeout=60, check=True)
    line = done.stderr.decode(encoding)
    record = json.loads(line)
    assert (record["said"], record["evil"]) == (SAID, EVIL), "nothing is lost"
    assert line.endswith("}\n")
    assert len(line.splitlines()) == 1
    assert re.search("[^\n -~]", line.replace(SAID, "")) is None, "nothing else but plain printable ASCII"
    assert (SAID in line) == (encoding == "utf-8")
