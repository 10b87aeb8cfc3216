"""Hides secrets in everything that leaves autotune: people commit and share its files, messages and pages.

A secret is the value of an option or variable with a name such as ``--hf-token`` or ``WANDB_API_KEY``, or a string in
the form of a known service's keys. It is hidden where it stands under such a name, and wherever it is repeated; a value
of a name such as ``--key`` is hidden elsewhere only if it looks random: it may be a word of the training. Commands run
with their secrets: only text that is shown or stored passes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
"""Stands in a secret's place."""
Named = tuple[str, str]
"""A secret after the name under which it was given."""
LEAST_REPEATED = 8
"""Characters of a value that is hidden wherever it is repeated: a shorter one may be an ordinary word."""

_SIGNS = (
    "token", "key", "passw", "passphrase", "secret", "credential", "bearer", "authorization", "login", "://", "hf_",
    "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "akia", "asia", "aiza", "xox", "glpat-", "eyj",
    "wandb_v1_", "sig=", "signature",
)  # fmt: skip
"""In lower case. A text without any of them holds no named secret, and no secret of a known form."""
_FORMS = re.compile(
    r"""
    (?<![A-Za-z0-9])(?:
        hf_(?=[A-Za-z]*\d)[A-Za-z0-9]{8,} | hf_[A-Za-z0-9]{16,}
      | sk-(?=[A-Za-z_-]{0,40}\d)[A-Za-z0-9_-]{16,}
      | gh[opsur]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,} | glpat-[A-Za-z0-9_-]{16,}
      | (?:AKIA|ASIA)[0-9A-Z]{16} | AIza[0-9A-Za-z_-]{30,}
      | xox[a-z]-[A-Za-z0-9-]{10,} | wandb_v1_[A-Za-z0-9_]{16,}
      | eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*
    )
    | -----BEGIN\ [A-Z\ ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z\ ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)(?=[^\s/@:]*\d)[^\s/@:'"]{20,}(?=@)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Keys of Hugging Face, OpenAI and Anthropic, GitHub, GitLab, AWS, Google, Slack and W&B; JSON web tokens; private
keys; a key in the place of a URL's user."""
_IN_CONTEXT = re.compile(
    r"""
    (?P<url>://[^\s/@:'"]*:) [^\s/'"]+ (?=@)
    | (?P<header>(?i:\bauthorization["']?\s*[:=]\s*["']?(?:\w+\s+)?|\bbearer\s+)) (?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}
    | (?P<login>\blogin\s+(?:--\S+\s+)*) [0-9a-f]{40,}
    | (?P<signed>(?i:[?&](?:sig|signature)|\bx-(?:amz|goog)-signature)=) [^\s&'"]+
    """,
    re.VERBOSE,
)
"""A URL's password, a header's credentials, the key of ``wandb login``, a URL's signature."""
_NAMED = re.compile(
    r"""
    (?<![\w$-]) (?P<quote>["']?) (?=[\w.+-]{0,80}(?i:token|key|passw|passphrase|secret|credential))
    (?P<name>[+-]{0,2}[A-Za-z_][\w.-]{0,80}) (?P=quote)\]?
    (?P<between>\s*(?<![=!<>:])[:=](?![=:/])\s*|\s+)
    (?P<value>\$\{[^{}]*\}|"(?:[^"\\\n]|\\.){0,4000}"|'(?:[^'\\\n]|\\.){0,4000}'|[^\s"'`,;&|()\[\]{}<>]+|<[^<>\s]*>|\[\w+\])
    (?P<next>[,()\[]?)
    """,
    re.VERBOSE,
)
"""A name and its value in the text of a command line, a shell, JSON, a Python call or a log."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_PASSWORD = re.compile(r"password|passwd|passphrase")
_SECRET = re.compile(r"secret|credential")
_KEY = re.compile(r"key|[a-z]*token|(?:api|access|account|auth|client|hf|license|private|service|wandb)key")
_KEYS = {"tokens", "keys", "apikeys"}
_OF_SERVICE = re.compile(
    r"(?:access|anthropic|api|auth|aws|azure|bearer|comet|gh|github|gitlab|google|hf|hub|huggingface|neptune|openai"
    r"|private|service|wandb)(?:key|token)?"
)
"""In a name with one of these words ``key``, ``token``, ``keys`` and ``tokens`` always mean a secret."""
_OF_DATA = {
    "add", "attention", "audio", "batch", "begin", "bias", "bos", "cache", "caption", "class", "cls", "column", "data",
    "dataset", "decoder", "dim", "drop", "dropout", "embed", "embedding", "end", "eos", "error", "feature", "field",
    "group", "head", "heads", "id", "image", "index", "input", "join", "label", "len", "length", "loss", "mask", "max",
    "metric", "min", "model", "monitor", "norm", "num", "output", "pad", "padding", "partition", "per", "pool",
    "prefix", "primary", "proj", "prompt", "query", "sample", "sep", "shift", "size", "sort", "special", "start",
    "state", "stop", "suffix", "target", "task", "text", "train", "type", "unk", "value", "video", "vocab",
}  # fmt: skip
"""In a name with one of these words ``key`` and ``token`` belong to a data set or a model: ``--pad-token``."""
_WORDS = re.compile(r"[A-Za-z_]+\d{0,3}")
"""A word, perhaps with a number, as a data set's columns and a model's parts are called."""
_ENVIRONMENT = re.compile(r"[A-Z\d_]+_(?:TOKEN|KEY)")
_PLACES = {"dir", "directory", "file", "filename", "folder", "path"}
"""At the end of a name: its value is the place of a secret, and no secret."""
_SWITCHES = {"", "true", "false", "none", "null", "yes", "no", "on", "off"}
_PLAIN = re.compile(
    r"[+-]?[\d_,]{0,15}\.?\d{1,12}(?:e[+-]?\d{1,3})?[a-z%]?|<[^<>]*>|\[\w+\]|.+\.(?:env|ini|json|pem|toml|txt|ya?ml)",
    re.IGNORECASE,
)
"""A number, a tokenizer's special token, or a file."""
_REFERENCE = re.compile(r"\$\w+|\$\{[^{}]*\}|%\w+%|\*{3}")
"""A shell's or Hydra's reference to a value; or a secret that is hidden already."""
_PROSE = {
    "a", "an", "and", "are", "as", "at", "expected", "expects", "for", "from", "given", "got", "has", "in", "invalid",
    "is", "lambda", "missing", "must", "needs", "not", "of", "on", "or", "required", "requires", "self", "should",
    "that", "the", "to", "was", "which", "with",
}  # fmt: skip
"""Words that follow an option's name in a sentence about it."""
_NO_NAME = re.compile(r"[\s;|&'\"]")
_SHELL = re.compile(r"-[a-z]*c")
"""The option that precedes a shell's command."""
_HEXADECIMAL = re.compile(r"[0-9a-f]{40,}")
_RANDOM = re.compile(r"\d{4}|\d[A-Za-z]+\d|[A-Za-z0-9]{20}")
"""A key contains this; words with a number, such as `resnet50`, contain it only by chance."""
LEAST_MIXED = 16
"""Characters of a key without a digit, in upper and lower case."""
_TARGET = re.compile(r"[\w./\\-]+:[A-Za-z_][\w.]*")
"""``module:attr`` or ``path.py:attr``, which is no name with its secret."""
_MODULE = re.compile(r"[a-z]\w*[_.][\w.]*")
_STRUCTURE = re.compile(
    r"workload\.(?:target|fingerprint|script\.(?:loop(?:\..*)?|source\.(?:main|folder|(?:loaders|optimizers)\.file)))",
    re.DOTALL,
)
"""Places in autotune's files by which a script is found again: words under doubtful names stay there."""

_remembered: dict[str, bool] = {}  # each spelling of a secret: whether its name is certain


def masked_command(words: Iterable[str]) -> tuple[str, ...]:
    """A command with its secrets hidden, word by word.

    Args:
        words: As the program gets them. A word may itself hold a command, as after ``bash -c``.
    """
    return tuple(shown for shown, _ in _scanned(words))


def masked_text(text: str) -> str:
    """A text with its secrets hidden; a text without any stays as it is."""
    return _scanned_text(text)[0]


def masked_data(value: Any) -> Any:
    """Hides secrets in all text in lists, tuples and values of dicts; a list of texts counts as a command."""
    return _masked(value, "")


def _masked(value: Any, place: str) -> Any:
    """Data at a place such as ``workload.target``, with its secrets hidden."""
    is_structure = _STRUCTURE.fullmatch(place) is not None
    if isinstance(value, str):
        is_found = is_structure and (place != "workload.target" or _TARGET.fullmatch(value))
        return _without_known(value, certain=True) if is_found else masked_text(value)
    if isinstance(value, Mapping):
        shown = {key: _without_known(key, certain=True) if isinstance(key, str) else key for key in value}
        return {shown[key]: _masked(inner, f"{place}.{key}" if place else str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        is_command = not is_structure and all(isinstance(inner, str) for inner in value)
        return type(value)(masked_command(value) if is_command else (_masked(inner, place) for inner in value))
    return value


def may_hold_secret(text: str) -> bool:
    """Whether a text may hold a secret. Fast; False is always right."""
    lower = text.lower()
    return any(sign in lower for sign in _SIGNS) or any(value in text for value in _remembered)


def is_masked(words: Sequence[str]) -> bool:
    """Whether a secret of a command is hidden, so that the command cannot run."""
    return any(HIDDEN in word for word in words)


def remember_secrets(words: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
    """Hides the secrets of a command or the environment from now on, also where they are repeated without a name.

    The last lines of a script may quote a key that a server has refused.
    """
    named = [secret for _, secrets in _scanned(words) for secret in secrets]
    named += [(name, value) for name, value in (environment or {}).items() if _is_secret(name, value)]
    for name, value in named:
        certain = _is_certain(name)
        if _is_distinctive(value) and (certain or _looks_random(value) or _is_mixed(value)):
            for spelling in _spellings(value):
                _remembered[spelling] = certain or _remembered.get(spelling, False)


def hide(text: str, secret: str) -> str:
    """A text without a secret, in any spelling, however short it is."""
    return _without(text, _spellings(secret) if secret else ())


def _spellings(value: str) -> set[str]:
    """A value as it is, in URLs and in JSON."""
    in_json = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    return {value, quote(value, errors="replace"), quote_plus(value, errors="replace"), *in_json}


def _without(text: str, values: Iterable[str]) -> str:
    for value in sorted((value for value in values if value in text), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _without_known(text: str, *, certain: bool = False) -> str:
    """A text without secrets of known forms, and remembered ones; with `certain` only those of certain names."""
    if not may_hold_secret(text):
        return text
    text = _without(text, (value for value in _remembered if _remembered[value] or not certain))
    return _IN_CONTEXT.sub(lambda match: f"{match[match.lastgroup or 0]}{HIDDEN}", _FORMS.sub(HIDDEN, text))


def _scanned(words: Iterable[str]) -> list[tuple[str, list[Named]]]:
    """Each word with its secrets hidden, and its named secrets."""
    scanned: list[tuple[str, list[Named]]] = []
    option = ""  # whose value may be the next word
    for word in words:
        name, equals, value = word.partition("=")
        if option and _is_value(option, word):
            scanned.append((HIDDEN, [(option, word)]))
        elif equals and not _SHELL.fullmatch(option) and not _NO_NAME.search(name) and _is_secret(name, value):
            scanned.append((f"{name}={HIDDEN}", [(name, value)]))
        else:
            scanned.append(_scanned_text(word))
        option = word if word == "login" or (word.startswith("-") and not equals and not _NO_NAME.search(word)) else ""
    return scanned


def _is_value(option: str, word: str) -> bool:
    """Whether a word is the secret of the option before it, rather than another option."""
    if option == "login":
        return _HEXADECIMAL.fullmatch(word) is not None
    is_option = word.startswith("--") or (word.startswith("-") and len(word) < LEAST_REPEATED)
    return not is_option and _is_secret(option, word)


def _scanned_text(text: str) -> tuple[str, list[Named]]:
    """A text with its secrets hidden, and its named secrets."""
    if not may_hold_secret(text):
        return text, []
    text = _without_known(text)
    shown: list[str] = []
    secrets: list[Named] = []
    position = 0
    while (match := _NAMED.search(text, position)) is not None:
        value = match["value"]
        if _names_secret(match):
            quote = value[0] if value[0] in "\"'" else ""
            shown += [text[position : match.start("value")], f"{quote}{HIDDEN}{quote}"]
            secrets.append((match["name"], _unquoted(value)))
            position = match.end("value")
        else:  # its value may be a name itself
            shown.append(text[position : match.end("name")])
            position = match.end("name")
    return "".join([*shown, text[position:]]), secrets


def _names_secret(match: re.Match[str]) -> bool:
    """Whether a name and the value after it hold a secret, rather than a sentence or code about one."""
    name, between, value = match["name"], match["between"], _unquoted(match["value"])
    if not _is_secret(name, value):
        return False
    if value != match["value"]:  # quoted
        return name.startswith("-") or not between.isspace()
    if between.isspace():
        is_metavariable = value.replace("_", "-").lower() == name.lstrip("-").lower()
        return name.startswith("-") and not value.startswith("--") and not is_metavariable and value not in _PROSE
    if between == "=" and not match["next"]:
        return value not in _PROSE
    # Other values may be code or a sentence; without a space, ``module:attr``.
    is_target = between == ":" and _MODULE.fullmatch(name) and not _is_certain(name) and _is_word(value)
    return _has_digit(value) and not is_target


def _is_secret(name: str, value: str) -> bool:
    """Whether an option or a variable of this name, with this value, is a secret."""
    if _REFERENCE.fullmatch(value) or value.lower() in _SWITCHES:
        return False
    parts = _parts(name.rpartition(".")[2])
    if not parts or parts[-1] in _PLACES:
        return False
    is_password = any(map(_PASSWORD.search, parts))
    if is_password or _PLAIN.fullmatch(value):
        return is_password
    if any(map(_SECRET.search, parts)):
        return True
    of_service = any(map(_OF_SERVICE.fullmatch, parts))
    if any(map(_KEY.fullmatch, parts)):
        return of_service or (_OF_DATA.isdisjoint(parts) and not _is_of_training(name, value))
    return of_service and not _KEYS.isdisjoint(parts)


def _is_of_training(name: str, value: str) -> bool:
    """Whether a value is a part of a model, ``token_mixer=attention_v2``, or a column of data, ``data.key=image``."""
    *before, last = _parts(name)
    is_column = last == "key" and not {"data", "dataset"}.isdisjoint(before)
    is_part = last == "mixer" and before[-1:] == ["token"]
    return (is_column or is_part) and _is_word(value) and not _is_certain(name)


def _is_certain(name: str) -> bool:
    """Whether a secret's name can mean nothing else."""
    parts, tests = _parts(name), (_PASSWORD.search, _SECRET.search, _OF_SERVICE.fullmatch)
    is_of_environment = _ENVIRONMENT.fullmatch(name) is not None and _OF_DATA.isdisjoint(parts)
    return is_of_environment or any(test(part) for part in parts for test in tests)


def _parts(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return [part.lower() for part in _PARTS.findall(name)]


def _is_distinctive(value: str) -> bool:
    """Whether a value is distinctive: other texts may hold an ordinary word or a path by chance."""
    return len(value) >= LEAST_REPEATED and value[0] not in "/~" and not (value.isalpha() and value.islower())


def _looks_random(value: str) -> bool:
    """Whether a text looks like a key rather than a word, or words with a number."""
    return _has_digit(value) and _RANDOM.search(value) is not None


def _has_digit(value: str) -> bool:
    """Whether a text has a digit and a letter, and is long enough for a key."""
    return len(value) >= LEAST_REPEATED and all(any(map(kind, value)) for kind in (str.isdigit, str.isalpha))


def _is_word(value: str) -> bool:
    """Whether a text is a word, perhaps with a number, and no key."""
    return _WORDS.fullmatch(value) is not None and not (_looks_random(value) or _is_mixed(value))


def _is_mixed(value: str) -> bool:
    """Whether a text may be a key without a digit."""
    return len(value) >= LEAST_MIXED and value != value.lower() and value != value.upper()


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
