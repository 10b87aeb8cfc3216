"""Which words of a command and which parts of a text are hidden, and which must stay as they are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest

from autotune import secrets
from autotune.secrets import is_masked, masked_command, masked_data, masked_text, may_hold_secret, remember_secrets

HEX = "0123456789abcdef0123456789abcdef01234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without the secrets of another one."""
    monkeypatch.setattr(secrets, "_remembered", {})
    return


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python train.py --hf-token abc", "python train.py --hf-token ***"),
        ("python train.py --hf-token=abc", "python train.py --hf-token=***"),
        ("python train.py --hf_token abc --epochs 3", "python train.py --hf_token *** --epochs 3"),
        ("python train.py --hfToken abc", "python train.py --hfToken ***"),
        ("python train.py -token abc", "python train.py -token ***"),
        ("HF_TOKEN=abc python train.py", "HF_TOKEN=*** python train.py"),
        ("env HF_TOKEN=abc A=1 python train.py", "env HF_TOKEN=*** A=1 python train.py"),
        ("env WANDB_API_KEY=abc python train.py", "env WANDB_API_KEY=*** python train.py"),
        ("python train.py token=abc lr=0.1", "python train.py token=*** lr=0.1"),
        ("python train.py +logger.wandb.api_key=abc", "python train.py +logger.wandb.api_key=***"),
        ("python train.py --key abc", "python train.py --key ***"),
        ("python train.py --api-key abc", "python train.py --api-key ***"),
        ("python train.py --apikey abc", "python train.py --apikey ***"),
        ("python train.py --model-api-key abc", "python train.py --model-api-key ***"),
        ("python train.py --api-keys a,b", "python train.py --api-keys ***"),
        ("python train.py --use-auth-token abc", "python train.py --use-auth-token ***"),
        ("python train.py --password 1234", "python train.py --password ***"),
        ("python train.py --db-passwd=x", "python train.py --db-passwd=***"),
        ("python train.py --client-secret x --credentials y", "python train.py --client-secret *** --credentials ***"),
        ("python train.py --db postgresql://me:pw@host/a", "python train.py --db postgresql://me:***@host/a"),
        ("python train.py --proxy=http://:p%40w@host:80", "python train.py --proxy=http://:***@host:80"),
        (f"wandb login {HEX}", "wandb login ***"),
        (
            f"python train.py --header 'Authorization: Bearer {JWT}'",
            "python train.py --header 'Authorization: Bearer ***'",
        ),
        ("python train.py hf_abcdefgh12345678", "python train.py ***"),
        ("python train.py --x sk-proj-abcdefgh12345678", "python train.py --x ***"),
        ("python train.py --x=ghp_abcdefgh12345678abcd", "python train.py --x=***"),
        ("python train.py github_pat_abcdefgh12345678", "python train.py ***"),
        ("python train.py AKIAABCDEFGHIJKLMNOP", "python train.py ***"),
        ("python train.py AIzaSyA-abcdefghijklmnopqrstuvwxyz01234", "python train.py ***"),
        ("python train.py xoxb-123456789012-abc", "python train.py ***"),
        ("python train.py glpat-abcdefgh12345678", "python train.py ***"),
        (f"python train.py {JWT}", "python train.py ***"),
        ("bash -c 'python train.py --hf-token abc'", "bash -c 'python train.py --hf-token ***'"),
        ("bash -c 'HF_TOKEN=abc python train.py'", "bash -c 'HF_TOKEN=*** python train.py'"),
        ("bash -c 'export HF_TOKEN=\"a b\"; python train.py'", "bash -c 'export HF_TOKEN=\"***\"; python train.py'"),
        ("bash -c \"python train.py --a --token='abc' --b\"", "bash -c \"python train.py --a --token='***' --b\""),
        ('python train.py --config \'{"api_key": "abc"}\'', 'python train.py --config \'{"api_key": "***"}\''),
        ("python train.py --token-for-x Zx81-abcd-9911", "python train.py --token-for-x ***"),
        ("python train.py model.token=Zx81abcd9911", "python train.py model.token=***"),
        ("env GITHUB_TOKEN=abc OPENAI_KEY=abc python train.py", "env GITHUB_TOKEN=*** OPENAI_KEY=*** python train.py"),
        ("env TOKEN_SECRET=my-super-secret-word KEY_1=hunter22 a.py", "env TOKEN_SECRET=*** KEY_1=*** a.py"),
        (
            "env SECRET_KEY_BASE=abc a.py --key-secret=x --token-secret x",
            "env SECRET_KEY_BASE=*** a.py --key-secret=*** --token-secret ***",
        ),
        ("a.py --token-credential x --bot-token-prod letmein-pls", "a.py --token-credential *** --bot-token-prod ***"),
        (
            "a.py model.openai.key=abc model.hub.token=abc data.auth.token=abc",
            "a.py model.openai.key=*** model.hub.token=*** data.auth.token=***",
        ),
        (
            "a.py model.secret.key=abcd model.credentials.token=a dataset.token=letmein-please",
            "a.py model.secret.key=*** model.credentials.token=*** dataset.token=***",
        ),
        (
            "a.py data.key=letmein-please train.key=abcd --token-mixer Zx81-abcd-9911",
            "a.py data.key=*** train.key=*** --token-mixer ***",
        ),
        ("python train.py 'https://a/b?sv=1&sig=a%2Fb3D'", "python train.py 'https://a/b?sv=1&sig=***'"),
    ],
)
def test_secrets_of_commands_are_hidden(command: str, shown: str) -> None:
    """By the names of options and variables, by known forms, in URLs and in commands within commands."""
    masked = masked_command(shlex.split(command))
    assert masked == tuple(shlex.split(shown))
    assert is_masked(masked)
    assert masked_command(masked) == masked


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --max-tokens 512 --num-tokens=3 --token-dropout 0.1",
        "python train.py --tokenizer bert --tokenizer-name=gpt2 --key-bias true --use-token false",
        "python train.py --token 1e-3 --key 12 --tokens-per-batch 4k --hf-token",
        "python train.py --pad-token '<pad>' --eos-token '</s>' --mask-token '[MASK]' --token '<|end|>'",
        "python train.py --image-key jpg --label-key=cls --sort-key length --keys image,label",
        "python train.py --token-mixer attention_v2 model.token_mixer=resnet50 data.key=image",
        "autotune --model multi_token:build_gpt2",
        "python train.py --keyboard de --monkey x --hockey=y --turkey z",
        "python train.py --key-file ~/.ssh/id --token-path=t.txt --credentials-file c.json --credentials /a/b.json",
        "python train.py --hf-token $HF_TOKEN api_key=${oc.env:KEY} --token %HF_TOKEN%",
        "bash -c 'python train.py --hf-token $HF_TOKEN --tokenizer bert'",
        "python train.py --hf-token --epochs 3",
        "python -m sk-learn-tools --data hf_transformers --hub hf_hub_download_all",
        "python train.py --url https://host:8080/path@v2 --host user@host --out s3://bucket/key=1",
        f"python train.py --commit {HEX}",
        "env TOKENIZERS_PARALLELISM=false python train.py",
        "torchrun --rdzv-endpoint localhost:29400 train.py",
    ],
)
def test_what_only_looks_like_a_secret_stays(command: str) -> None:
    """Numbers, switches, tokenizers, special tokens, columns of data, places and references."""
    words = tuple(shlex.split(command))
    assert masked_command(words) == words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401 for token='abc' at https://me:pw@host", "401 for token='***' at https://me:***@host"),
        ("environ({'HF_TOKEN': 'abc', 'A': 'b'})", "environ({'HF_TOKEN': '***', 'A': 'b'})"),
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "***"'),
        ('{"api_key": "a\\"bc", "x": 1}', '{"api_key": "***", "x": 1}'),
        ("hf_token: abcd1234", "hf_token: ***"),
        ("password: hunter22x", "password: ***"),
        ("connect(password=hunter22x)", "connect(password=***)"),
        ("{password: summer24!}", "{password: ***}"),
        ("api_key: sk_live-abcdefg1", "api_key: ***"),
        ("openai_api_key: correct-horse-9", "openai_api_key: ***"),
        ("my_token: hunter22x, f(key=resnet50)", "my_token: ***, f(key=***)"),
        ("my_token:hunter22x token:hunter22 KEY_1:hunter22", "my_token:*** token:*** KEY_1:***"),
        ("GET /a?token=abc&page=2", "GET /a?token=***&page=2"),
        ("GET /a?X-Amz-Signature=0a1b&x=2 X-Goog-Signature=0a", "GET /a?X-Amz-Signature=***&x=2 X-Goog-Signature=***"),
        (f"Authorization: Bearer {HEX}", "Authorization: Bearer ***"),
        ("x -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- y", "x *** y"),
        ("'python train.py --hf-token abc' loads torch", "'python train.py --hf-token ***' loads torch"),
        ("export WANDB_API_KEY=abc\npython train.py", "export WANDB_API_KEY=***\npython train.py"),
        ("Namespace(lr=0.1, hf_token='abc', key='def')", "Namespace(lr=0.1, hf_token='***', key='***')"),
    ],
)
def test_secrets_of_texts_are_hidden(text: str, shown: str) -> None:
    """In the last lines of a script, in a log, in a traceback."""
    assert masked_text(text) == shown
    assert masked_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "usage: train.py [--hf-token HF_TOKEN] [--key KEY]",
        "train.py: error: argument --hf-token: expected one argument",
        "the option --api-key is required; --token expects a word",
        "    return sorted(items, key=len)\n    x = attention(query, key=key, value=value)",
        "    key = compute(values)\nKeyError: 'key'",
        "unexpected token: end of file",
        "module train:build, token:build, tokens 5, secretly",
        "multi_token:build_gpt2 and folder/multi_token:build_v2 are no functions",
        "signature=inspect.signature(build), sig=3",
        "bearer of bad news, basic training, login failed",
    ],
)
def test_sentences_and_code_stay(text: str) -> None:
    """Which speak of an option, or pass a variable on."""
    assert masked_text(text) == text


def test_a_known_secret_is_hidden_without_its_name() -> None:
    """It comes from the command, a command in it or the environment; short values and ordinary words stay."""
    remember_secrets(
        ["python", "train.py", "--hf-token", "Zx81-9q", "--password", "training", "--api-key=tellmenothing7"],
        {"MY_SECRET": "from-the-shell", "HOME": "/home/someone"},
    )
    remember_secrets(["bash", "-c", "python train.py --hf-token in-the-shell-1"])
    text = "refused: tellmenothing7, from-the-shell, in-the-shell-1; training of Zx81-9q in /home/someone"
    assert masked_text(text) == "refused: ***, ***, ***; training of Zx81-9q in /home/someone"


def test_a_word_under_a_doubtful_name_is_hidden_only_there() -> None:
    """It may be a knob, a file or a class elsewhere; what looks random is hidden wherever it is repeated."""
    environment = {"KEY": "batch_size", "SORT_KEY": "length_v2", "OTHER_TOKEN": "Zx81-abcd-9911"}
    remember_secrets(["train.py", "--key", "imagefolder2", "--my-token", "attention_v2"], environment)
    text = "batch_size of attention_v2 in imagefolder2; refused: Zx81-abcd-9911"
    assert masked_text(text) == text.replace("Zx81-abcd-9911", "***")


@pytest.mark.parametrize(
    "words",
    ["WEBHOOK_TOKEN=xKqPzRtLmNvBcWsDfGhJ", "STRIPE_KEY=ABCDEFGHIJKL", "STRIPE_KEY=correct-horse",
     "--token=correct-Horse-battery", "model.openai.key=correct-horse"],
)  # fmt: skip
def test_a_key_without_a_digit_is_hidden_where_it_is_repeated(words: str) -> None:
    """Under a certain name, or if it is long and in mixed case."""
    remember_secrets([words])
    assert masked_text(f"refused: {words.partition('=')[2]}") == "refused: ***"


@pytest.mark.parametrize("value", ['p"ss\\w0rd!', "first line\nsecond line", "pässw\tord", "a b&c/d+e"])
def test_a_known_secret_is_hidden_in_every_spelling(value: str) -> None:
    """In the text of a file before it is decoded, and in a URL."""
    remember_secrets(environment={"DB_PASSWORD": value})
    data = {"why": f"refused: {value}!"}
    for ascii_only in (True, False):
        text = json.dumps(data, ensure_ascii=ascii_only)
        assert may_hold_secret(text)
        assert masked_text(text) == '{"why": "refused: ***!"}'
    assert masked_data(data) == {"why": "refused: ***!"}
    assert masked_text(f"at host?p={quote_plus(value)}") == "at host?p=***"


def test_what_identifies_a_script_stays() -> None:
    """Files, targets and loops: with a part hidden, no command would find them."""
    remember_secrets(["--key", "Zx81abcd9911"])
    source = {
        "main": "Zx81abcd9911.py", "folder": "Zx81abcd9911", "files": {"Zx81abcd9911.py": "0" * 64},
        "loaders": [{"file": "Zx81abcd9911.py"}],
    }  # fmt: skip
    script = {"source": source, "loop": {"models": ["Zx81abcd9911.Net", "token=a"], "place": {"a": "Zx81abcd9911"}}}
    data = {"workload": {"target": "Zx81abcd9911:build", "script": script}}
    assert masked_data(data) == data
    assert masked_data({"workload": {"target": "a.py --hf-token abc"}}) == {
        "workload": {"target": "a.py --hf-token ***"}
    }


@pytest.mark.parametrize("value", ["hf_abcdefgh12345678", "https://u:pw123456@h/x", "from-the-shell"])
@pytest.mark.parametrize("place", ["parameters.file", "script.loop.main", "script.source.folder", "target"])
def test_secrets_are_hidden_in_every_place(place: str, value: str) -> None:
    """Also in those by which a script is found again."""
    remember_secrets(environment={"MY_SECRET": "from-the-shell"})
    data: Any = value
    for name in reversed(f"workload.{place}".split(".")):
        data = {name: data}
    assert value.rpartition("u:")[2].removesuffix("@h/x") not in str(masked_data(data))
    assert masked_data({"loop": {"file": "--token abc"}}) == {"loop": {"file": "--token ***"}}


def test_data_is_masked_to_any_depth() -> None:
    """A list of texts is a command; other values stay."""
    data = {
        "argv": ["a.py", "--token", "abc"], "deep": [{"note": "token=abc"}, 3, None], "pair": (1, "key='v'"),
        "counts": {"refused hf_abcdefgh12345678": 1, "token=abc": 2},
    }  # fmt: skip
    assert masked_data(data) == {
        "argv": ["a.py", "--token", "***"], "deep": [{"note": "token=***"}, 3, None], "pair": (1, "key='***'"),
        "counts": {"refused ***": 1, "token=abc": 2},
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["token." * 50_000, "sk-" * 50_000, 'token="' * 20_000, "key " * 50_000, "token" + " " * 100_000, "://a" * 50_000,
     "login --a " * 30_000, "-----BEGIN PRIVATE KEY-----" * 5_000, "eyJ" * 50_000, "a" * 200_000 + "key=b",
     "token:" + "1a" * 50_000, "?sig=" * 50_000],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_no_text_takes_forever(text: str) -> None:
    """A script may print anything; the test's time limit is far beyond what each of these takes."""
    masked_text(text)
