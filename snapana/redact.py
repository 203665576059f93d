"""Recordings made fit for strangers: names, paths and texts become placeholders, figures stay.

A placeholder of a folder or a text is a digest of it, so that the same one gets the same placeholder in every file, and
stacks of two runs stay comparable. Whoever guesses a folder's full path can check the guess. Users, hosts and mail
addresses, which are guessed more easily, are numbered in the order in which they are met.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd

from snapana.snapshot.model import ACTIONS, Snapshot
from snapana.snapshot.normalise import KNOWN_KEYS
from snapana.snapshot.sidecar import Sidecar
from snapana.snapshot.stacks import Stacks
from snapana.trace.model import Spans, Timeline, Trace

_ROOT = "/redacted"
# What follows these in a path is public: packages, the standard library, PyTorch's own sources.
_PUBLIC = re.compile(
    r"(?:lib(?:64)?/python3\.\d+t?/|Lib/)(?:site|dist)-packages/.*|(?:site|dist)-packages/.*"
    r"|lib(?:64)?/python3\.\d+t?/.*|(?<=/)Lib/.*|pytorch/(?:torch|aten|c10|caffe2|third_party)/.*",
)
_GENERATED = re.compile(r"torchinductor_[^/]*")
_SPECIAL = re.compile(r"<[\w .-]{1,60}>$")
_HOMES = re.compile(
    r"(?:/home|/Users|/export/home|/mnt/home|/nfs/home|[A-Za-z]:/Users|[A-Za-z]:/Documents and Settings)/([^/]+)/"
)
_INDUCTOR_USER = re.compile(r"torchinductor_([A-Za-z][\w.-]*)")
_UNC = re.compile(r"^//([^/]+)/([^/]+)")
_MAIL = re.compile(r"([A-Za-z0-9._%+-]+)@([A-Za-z0-9.-]+\.[A-Za-z]{2,})")
_AT_HOST = re.compile(r"\b([A-Za-z][\w.-]*)@([A-Za-z][\w.-]+)\b")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
_TOKEN = re.compile(
    r"\b(?:hf|ghp|gho|ghs|ghu|sk|pk|rk|xox[abprs]|glpat|npm|pypi|dckr|api|key|token|secret)[-_][A-Za-z0-9_-]{12,}"
    r"|\bgithub_pat_\w{20,}|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|\b(?=[A-Za-z+]*\d)(?=[0-9+]*[A-Za-z])[A-Za-z0-9+]{32,}={0,2}"
)
# A path within other text: absolute ones of Unix and Windows, and UNC ones.
_PATHS = re.compile(r"(?:[A-Za-z]:)?(?:\\\\[^\s\\\"'<>|:]+)?(?:[\\/][^\s\\/\"'<>|:,;()]+){2,}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(\S+)")
_STEP = re.compile(r"(?:ProfilerStep#\d+|Optimizer\.(?:step|zero_grad)#\w+\.\w+)$")
_PREFIX = re.compile(r"(?:ProfilerStep#|Optimizer\.(?:step|zero_grad)#|## |nn\.Module: |aten::|autograd::)")
_REGION = re.compile(r"(?:Torch-Compiled Region: )?[\d/_]+$|N/A$|$")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]{0,40}$")
_CONF = re.compile(r"[a-z0-9_:,\[\]>.\s-]*$", re.IGNORECASE)
_SETTINGS = re.compile(
    r"\s*(?:backend|max_split_size_mb|max_non_split_rounding_mb|large_segment_size_mb|garbage_collection_threshold"
    r"|roundup_power2_divisions|roundup_bypass_threshold_mb|expandable_segments|pinned_\w+|release_lock_on_\w+"
    r"|graph_capture_record_stream_reuse|per_process_memory_fraction|throw_on_cudamalloc_oom|page_size)\s*:"
)
# What stands below a key that PyTorch does not write: nothing is known of it.
_FOREIGN = "?"
# Fewer letters occur in ordinary words.
_LEAST = 3
_COMMON = {"user", "root", "home", "ubuntu", "admin", "train", "torch", "python", "data", "work", "public", "default"}


class Redactor:
    """Replaces names, and remembers by what."""

    def __init__(self) -> None:
        # What stands for what, by kind.
        self.replaced: dict[str, dict[str, str]] = {}
        self._people: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._paths: dict[str, str] = {}

    @property
    def counts(self) -> dict[str, int]:
        """How many different things of each kind were replaced."""
        return {kind: len(found) for kind, found in sorted(self.replaced.items()) if found}

    def lines(self) -> list[str]:
        """Say what stands for what, a line each."""
        return [f"{kind}\t{new}\t{old}" for kind, found in sorted(self.replaced.items()) for old, new in found.items()]

    # ---- what is known of people

    def learn(self, text: str) -> None:
        """Look in a path or text for users and hosts, whose names are then replaced everywhere."""
        path = text.replace("\\", "/")
        for kind, found in (
            ("user", _HOMES.findall(path)),
            ("user", _INDUCTOR_USER.findall(path)),
            ("host", [host for host, _ in _UNC.findall(path)]),
        ):
            for name in found:
                self._person(kind, name)
        for match in _MAIL.finditer(text):
            self._note("email", match.group(), f"email-{len(self.replaced.get('email', {})) + 1}@redacted")
            self._person("user", match.group(1))
            self._person("host", match.group(2))
        for user, host in _AT_HOST.findall(_MAIL.sub(" ", text)):
            self._person("user", user)
            self._person("host", host)

    def _person(self, kind: str, name: str) -> None:
        if len(name) < _LEAST or name.lower() in _COMMON or name.lower() in self._people:
            return
        number = sum(one.startswith(f"{kind}-") for one in self._people.values()) + 1
        self._people[name.lower()] = f"{kind}-{number}"
        self._note(kind, name, f"{kind}-{number}")
        names = sorted(self._people, key=len, reverse=True)
        self._pattern = re.compile(
            f"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, names))})(?![A-Za-z0-9])", re.IGNORECASE
        )

    def _note(self, kind: str, old: str, new: str) -> str:
        return self.replaced.setdefault(kind, {}).setdefault(old, new)

    def _digest(self, kind: str, text: str) -> str:
        short = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
        return self._note(kind, text, f"{kind}-{short}")

    # ---- what is replaced

    def path(self, path: str) -> str:
        """Replace the folders of a file's path; those of packages, of Python and of PyTorch stay."""
        known = self._paths.get(path)
        if known is None:
            known = self._paths[path] = self._path(path)
        return known

    def _path(self, path: str) -> str:
        if not path or path == "??" or _SPECIAL.match(path):
            return path
        head, mark, rest = path.partition(" from ")
        if mark and head.startswith("<"):
            return f"{self.scrub(head)}{mark}{self.path(rest)}"
        plain = path.replace("\\", "/")
        public = _PUBLIC.search(plain)
        if public:
            if plain[: public.start()].strip("/"):
                self._note("folder", plain[: public.start()], _ROOT)
            return f"{_ROOT}/{self.scrub(public.group(), tokens=False)}"
        generated = _GENERATED.search(plain)
        folder, slash, name = plain.rpartition("/")
        name = self.scrub(name, tokens=generated is None)
        if generated:
            self._note("folder", folder, f"{_ROOT}/torchinductor_user")
            return f"{_ROOT}/torchinductor_user/{name}"
        if not slash:
            return name
        return f"{_ROOT}/{self._digest('folder', folder)}/{name}"

    def scrub(self, text: str, *, tokens: bool = True) -> str:
        """Replace what is private in a text that otherwise stays: names, addresses, paths, what looks like a key."""
        if not text:
            return text
        text = _MAIL.sub(lambda found: self._note("email", found.group(), "email@redacted"), text)
        if tokens:
            text = _URL.sub(lambda found: self._digest("url", found.group()), text)
            text = _PATHS.sub(lambda found: self.path(found.group()), text)
            text = _TOKEN.sub(lambda found: self._digest("token", found.group()), text)
            text = _ADDRESS.sub(lambda found: self._digest("address", found.group()), text)
            text = _ASSIGNED.sub(lambda found: f"{found.group(1)}={self._digest('value', found.group(2))}", text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._people[found.group().lower()], text)
        return text

    def function(self, name: str) -> str:
        """Keep a function's name, but for what in it is no name of a function."""
        return self.scrub(name, tokens=False) if re.search(r"[/\\\\@]", name) else name

    def annotation(self, text: str) -> str:
        """Replace an annotation, but for marks of steps; a known beginning stays."""
        if _STEP.match(text):
            return self.scrub(text, tokens=False)
        found = _PREFIX.match(text)
        start = found.group() if found else ""
        rest = text[len(start) :]
        return f"{start}{self._digest('annotation', rest)}" if rest else text

    def text(self, text: str) -> str:
        """Replace any other text of the user."""
        return self._digest("text", text) if text else text

    def conf(self, text: str) -> str:
        """Keep allocator settings; anything else that stands there is replaced."""
        parts = [part for part in re.split(r",(?![^\[]*\])", text) if part.strip()]
        if _CONF.match(text) and all(_SETTINGS.match(part) for part in parts):
            return text
        return self._digest("value", text) if text else text

    # ---- models

    def model(self, loaded: Snapshot | Trace | Timeline, name: str = "") -> Any:
        """Redact what was read; ``name`` is what the file is called from now on."""
        info = replace(loaded.info, name=name or loaded.info.kind, sha256=None)
        self._note("file", loaded.info.name, info.name)
        if isinstance(loaded, Timeline):
            return replace(loaded, info=info)
        if isinstance(loaded, Trace):
            for spans in (loaded.python, loaded.operators, loaded.annotations):
                self._learn_all(spans.names)
            return replace(
                loaded,
                info=info,
                python=_renamed(loaded.python, self._python_name),
                operators=_renamed(loaded.operators, self.function),
                annotations=_renamed(loaded.annotations, self.annotation),
                devices=tuple(replace(one, name=self.scrub(one.name)) for one in loaded.devices),
            )
        frames = loaded.stacks.frames.copy()
        self._learn_all([*frames["filename"], *frames["name"], *loaded.annotations["name"]])
        frames["filename"] = [self.path(path) for path in frames["filename"]]
        frames["name"] = [self.function(one) for one in frames["name"]]
        marks = loaded.annotations.assign(name=[self.annotation(one) for one in loaded.annotations["name"]])
        action = loaded.events["action"]
        unknown = {name: self._digest("key", name) for name in action.cat.categories if name not in ACTIONS}
        events = loaded.events.assign(
            action=action.cat.rename_categories(unknown),
            compile_context=_mapped(loaded.events["compile_context"], self._context),
            user_metadata=_mapped(loaded.events["user_metadata"], self.text),
        )
        forward = {stack: self.scrub(text) for stack, text in loaded.stacks.forward.items()}
        return replace(
            loaded,
            info=info,
            events=events,
            annotations=marks,
            sidecar=self._sidecar(loaded.sidecar),
            settings=replace(loaded.settings, conf=self.conf(loaded.settings.conf)),
            stacks=Stacks(frames, loaded.stacks.stacks, forward),
            unknown_keys=tuple(self._digest("key", key) for key in loaded.unknown_keys),
        )

    def _sidecar(self, sidecar: Sidecar | None) -> Sidecar | None:
        if sidecar is None:
            return None
        devices = tuple(replace(one, name=self.scrub(one.name)) for one in sidecar.devices)
        message = None if sidecar.message is None else self.scrub(sidecar.message)
        return replace(sidecar, conf=self.conf(sidecar.conf), message=message, devices=devices)

    def _learn_all(self, texts: Any) -> None:
        for text in dict.fromkeys(texts):
            self.learn(str(text))

    def _context(self, text: str) -> str:
        return text if _REGION.match(text) else self.text(text)

    def _python_name(self, name: str) -> str:
        """Redact ``path(line): function`` as the profiler writes it, and names of modules."""
        found = re.match(r"(.*)(\(\d+\): )(.*)$", name, re.DOTALL)
        if found is None:
            return self.function(name)
        return f"{self.path(found.group(1))}{found.group(2)}{self.function(found.group(3))}"

    # ---- documents

    def document(self, document: Any) -> Any:
        """Redact a snapshot as it stands in the file; parts that are shared stay shared."""
        self._learn_all(_strings(document))
        done: dict[int, Any] = {}
        if isinstance(document, dict):
            return {
                name if name in KNOWN_KEYS else self._foreign_key(name): self._walk(
                    item, str(name) if name in KNOWN_KEYS else _FOREIGN, done
                )
                for name, item in document.items()
            }
        return self._walk(document, "", done)

    def _foreign_key(self, name: Any) -> Any:
        return self._digest("key", name) if isinstance(name, str) else name

    def _walk(self, value: Any, key: str, done: dict[int, Any]) -> Any:
        if isinstance(value, str):
            return self._value(key, value)
        if not isinstance(value, dict | list | tuple):
            return value
        known = done.get(id(value))
        if known is not None:
            return known
        if isinstance(value, dict):
            made: Any = {}
            done[id(value)] = made
            # In frames a name is that of a function, elsewhere that of an annotation.
            inner = "function" if "filename" in value else "annotation"
            for name, item in value.items():
                if key == _FOREIGN:
                    made[self._foreign_key(name)] = self._walk(item, _FOREIGN, done)
                else:
                    made[self._key(name)] = self._walk(item, inner if name == "name" else str(name), done)
            return made
        items = [self._walk(item, key, done) for item in value]
        made = tuple(items) if isinstance(value, tuple) else items
        done[id(value)] = made
        return made

    def _key(self, key: Any) -> Any:
        if not isinstance(key, str) or _WORD.match(key) or key.isdigit():
            return self.scrub(key) if isinstance(key, str) else key
        return self._digest("key", key)

    def _value(self, key: str, value: str) -> str:
        if key == "filename":
            return self.path(value)
        if key == "function":
            return self.function(value)
        if key == "annotation":
            return self.annotation(value)
        if key in {"action", "state", "segment_type", "stage", "type"}:
            return value if _WORD.match(value) else self.text(value)
        if key == "compile_context":
            return self._context(value)
        if key.endswith("ALLOC_CONF"):
            return self.conf(value)
        if key == "forward_frames":
            return self.scrub(value)
        return self.text(value)


def _strings(value: Any) -> list[str]:
    """Collect the different texts of a document."""
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found[one] = None
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            waiting += [*one, *one.values()] if isinstance(one, dict) else one
    return list(found)


def _renamed(spans: Spans, change: Callable[[str], str]) -> Spans:
    return replace(spans, names=[change(name) for name in spans.names])


def _mapped(column: pd.Series, change: Callable[[str], str]) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(object).map({text: change(str(text)) for text in column.cat.categories}).astype("category")
    return column.map({text: change(str(text)) for text in column.unique().tolist()})


def summary_of(redactor: Redactor) -> str:
    """Say how much was replaced: ``3 folders, 1 user, 2 annotations``."""
    counts = redactor.counts.items()
    return ", ".join(f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in counts) or "nothing"
