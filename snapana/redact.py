"""Recordings made fit for strangers: names, paths and texts become placeholders, figures stay.

A placeholder of a folder or a text is a digest of it, so that the same one gets the same placeholder in every file, and
stacks of two runs stay comparable. Whoever guesses a folder's full path can check the guess. Users, hosts and mail
addresses, which are guessed more easily, are numbered in the order in which they are met.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from snapana.snapshot.model import ACTIONS, Snapshot
from snapana.snapshot.normalise import KNOWN_KEYS
from snapana.snapshot.sidecar import Sidecar
from snapana.snapshot.stacks import Stacks
from snapana.trace.memory import PACKAGES
from snapana.trace.model import Timeline, Trace

_ROOT = "/redacted"
# What follows these in a path is public: packages, the standard library, PyTorch's own sources.
_PUBLIC = re.compile(
    r"(?:lib(?:64)?/python3\.\d+t?/|(?<=/)Lib/)(?:site|dist)-packages/.*|(?:site|dist)-packages/.*"
    r"|lib(?:64)?/python3\.\d+t?/.*|(?<=[Pp]ython\d\d/)Lib/.*|(?<=[Pp]ython\d\d\d/)Lib/.*"
    r"|pytorch/(?:torch|aten|c10|caffe2|third_party)/.*",
)
# Folders of these names say what a line is for: see analyses/phases.py.
_OPTIMIZERS = re.compile(r"/optimizers?/")
_GENERATED = re.compile(r"torchinductor_[^/]*")
_SPECIAL = re.compile(r"<[\w .-]{1,60}>$")
_HOMES = re.compile(
    r"(?:/home|/Users|/export/home|/mnt/home|/nfs/home|[A-Za-z]:/Users|[A-Za-z]:/Documents and Settings)/([^/]+)/"
)
_INDUCTOR_USER = re.compile(r"torchinductor_([A-Za-z][\w.-]*)")
_UNC = re.compile(r"^//([^/]+)/([^/]+)")
_MAIL = re.compile(r"([A-Za-z0-9._%+-]+)@([A-Za-z0-9.-]+\.[A-Za-z]{2,})")
# A host's name has a digit, a dash or a dot; other things are written with an @ as well.
_AT_HOST = re.compile(r"\b([A-Za-z][\w.-]*)@((?=[\w-]*[\d.-])[A-Za-z][\w.-]+)\b")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
_KEY = re.compile(
    r"\b(?:hf|ghp|gho|ghs|ghu|sk|pk|rk|xox[abprs]|glpat|npm|pypi|dckr|api|key|token|secret)[-_][A-Za-z0-9_-]{12,}"
    r"|\bgithub_pat_\w{20,}|\bAKIA[0-9A-Z]{12,}|\bAIza[\w-]{20,}|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
)
_LONG = re.compile(r"\b(?=[A-Za-z+]*\d)(?=[0-9+]*[A-Za-z])[A-Za-z0-9+]{32,}={0,2}")
# A path within other text: absolute ones of Unix and Windows, and UNC ones.
_PATHS = re.compile(r"(?:[A-Za-z]:)?(?:\\\\[^\s\\\"'<>|:]+)?(?:[\\/][^\s\\/\"'<>|:,;()]+){2,}")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(\S+)")
_STEP = re.compile(r"(?:ProfilerStep#\d+|Optimizer\.(?:step|zero_grad)#\w+\.\w+)$")
_PREFIX = re.compile(r"(?:ProfilerStep#|Optimizer\.(?:step|zero_grad)#|## |nn\.Module: |aten::|autograd::)")
_REGION = re.compile(r"(?:Torch-Compiled Region: )?[\d/_]+$|N/A$|$")
_SETTINGS = re.compile(
    r"\s*(?:backend|max_split_size_mb|max_non_split_rounding_mb|large_segment_size_mb|garbage_collection_threshold"
    r"|roundup_power2_divisions|roundup_bypass_threshold_mb|expandable_segments|pinned_\w+|release_lock_on_\w+"
    r"|graph_capture_record_stream_reuse|per_process_memory_fraction|throw_on_cudamalloc_oom|page_size)"
    r"\s*:\s*(?:[\d.]+|True|False|native|cudaMallocAsync|\[[\d:,>\s]*\])\s*$"
)
# What PyTorch writes into snapshots; anything else is not known, and nothing of it is kept.
_KEYS = {
    *KNOWN_KEYS,
    *("device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type"),
    *("segment_pool_id", "is_expandable", "frames", "blocks", "size", "state", "history", "addr", "real_size"),
    *(
        "action",
        "time_us",
        "compile_context",
        "user_metadata",
        "pool_id",
        "device_free",
        "forward_frames",
        "cpp_frames",
    ),
    *("name", "filename", "line", "stage", "type", "registration_counter", "version", "private_pool_id"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "max_split_size", "garbage_collection_threshold"),
    *("expandable_segments", "pinned_num_register_threads", "release_lock_on_cudamalloc"),
    *("pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "roundup_power2_divisions"),
    *(
        "large_segment_size",
        "max_non_split_rounding_size",
        "per_process_memory_fraction",
        "pinned_use_background_threads",
    ),
    *("throw_on_cudamalloc_oom", "fx_node_name", "fx_node_op", "fx_original_trace"),
}
_VALUES = {
    "action": {*ACTIONS, "free", "segment_pool"},
    "state": {"active_allocated", "active_pending_free", "active_awaiting_free", "inactive"},
    "segment_type": {"small", "large"},
    "stage": {"START", "END", "INSTANT"},
    "type": {"small", "large"},
}
_REASONS = {"end", "exception", "exit", "oom", "signal", "every", "asked"}
_FORWARD = re.compile(r'File "([^"]*)", line (\d+), in (\S+)')
_EVAL = re.compile(r"(<eval_with_key>(?:\.\d+)?)(?: from (.*))?$", re.DOTALL)
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
        self._texts: dict[tuple[str, str], str] = {}

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
        made = _EVAL.match(path)
        if made:
            return made.group(1) + (f" from {self.path(made.group(2))}" if made.group(2) else "")
        plain = path.replace("\\", "/")
        public = _PUBLIC.search(plain)
        if public:
            if plain[: public.start()].strip("/"):
                self._note("folder", plain[: public.start()], _ROOT)
            return f"{_ROOT}/{public.group()}"
        # The profiler writes paths of packages without the folder that holds them.
        if not plain.startswith("/") and plain.split("/")[0].removesuffix(".py") in {
            *PACKAGES,
            *sys.stdlib_module_names,
        }:
            return plain
        generated = _GENERATED.search(plain)
        folder, slash, name = plain.rpartition("/")
        name = self.scrub(name, tokens=generated is None)
        if generated:
            self._note("folder", folder, f"{_ROOT}/torchinductor_user")
            return f"{_ROOT}/torchinductor_user/{name}"
        if not slash:
            return name
        kind = "/optimizers" if _OPTIMIZERS.search(plain) else ""
        return f"{_ROOT}/{self._digest('folder', folder)}{kind}/{name}"

    def scrub(self, text: str, *, tokens: bool = True) -> str:
        """Replace what is private in a text that otherwise stays: names, addresses, paths, what looks like a key."""
        if not text:
            return text
        text = _MAIL.sub(lambda found: self._note("email", found.group(), "email@redacted"), text)
        if tokens:
            text = _URL.sub(lambda found: self._digest("url", found.group()), text)
            text = _PATHS.sub(lambda found: self.path(found.group()), text)
            for pattern in (_KEY, _LONG):
                text = pattern.sub(lambda found: self._digest("token", found.group()), text)
            text = _ADDRESS.sub(lambda found: self._digest("address", found.group()), text)
            text = _ASSIGNED.sub(lambda found: f"{found.group(1)}={self._digest('value', found.group(2))}", text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._people[found.group().lower()], text)
        return text

    def function(self, name: str) -> str:
        """Keep a function's name, but for what in it is no name of a function."""
        if " " in name and not re.search(r"[(<]|::|^operator ", name):
            return self._digest("text", name)
        name = _URL.sub(lambda found: self._digest("url", found.group()), name)
        name = _KEY.sub(lambda found: self._digest("token", found.group()), name)
        return self.scrub(name, tokens=False) if re.search(r"[/\\@]", name) else name

    def annotation(self, text: str) -> str:
        """Replace an annotation, but for marks of steps; a known beginning stays."""
        if _STEP.match(text):
            return text
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
        if all(_SETTINGS.match(part) for part in parts):
            return text
        return self._digest("value", text) if text else text

    # ---- models

    def learn_from(self, loaded: Snapshot | Trace | Timeline) -> None:
        """Look for users and hosts in what was read: in all files, before the first of them is redacted."""
        if isinstance(loaded, Snapshot):
            frames = loaded.stacks.frames
            self._learn_all([*frames["filename"], *frames["name"], *loaded.annotations["name"]])
            self._learn_all(loaded.stacks.forward.values())
        elif isinstance(loaded, Trace):
            self._learn_all(loaded.python.names)

    def model(self, loaded: Snapshot | Trace | Timeline, name: str = "") -> Any:
        """Redact what was read; ``name`` is what the file is called from now on."""
        self.learn_from(loaded)
        info = replace(loaded.info, name=name or loaded.info.kind, sha256=None)
        self._note("file", loaded.info.name, info.name)
        if isinstance(loaded, Timeline):
            return replace(loaded, info=info)
        if isinstance(loaded, Trace):
            return self._trace(replace(loaded, info=info))
        frames = loaded.stacks.frames.copy()
        frames["filename"] = _objects([self.path(path) for path in frames["filename"]])
        frames["name"] = _objects([self.function(one) for one in frames["name"]])
        action = loaded.events["action"]
        unknown = {one: self._digest("key", one) for one in action.cat.categories if one not in ACTIONS}
        names = _objects([self.annotation(one) for one in loaded.annotations["name"]])
        names.index = loaded.annotations.index
        return replace(
            loaded,
            info=info,
            events=loaded.events.assign(
                action=action.cat.rename_categories(unknown),
                compile_context=_mapped(loaded.events["compile_context"], self._context),
                user_metadata=_mapped(loaded.events["user_metadata"], self.text),
            ),
            annotations=loaded.annotations.assign(name=names),
            sidecar=self._sidecar(loaded.sidecar),
            settings=replace(loaded.settings, conf=self.conf(loaded.settings.conf)),
            stacks=Stacks(
                frames,
                loaded.stacks.stacks,
                {stack: self._forward(text) for stack, text in loaded.stacks.forward.items()},
            ),
            unknown_keys=tuple(self._digest("key", key) for key in loaded.unknown_keys),
        )

    def _trace(self, trace: Trace) -> Trace:
        """Redact a trace: all spans have one table of names, and each name is treated as what uses it."""
        names = list(trace.operators.names)
        used = [np.unique(spans.name).tolist() for spans in (trace.operators, trace.annotations, trace.python)]
        runtime = set(np.unique(trace.runtime.name).tolist())
        changes = [self.function, self.annotation, self._python_name]
        for codes, change in zip(used, changes, strict=True):
            for code in codes:
                names[code] = change(trace.operators.names[code])
        kept = {code for codes in used for code in codes} | runtime
        for code in range(len(names)):
            if code not in kept:
                names[code] = self.text(names[code])
        return replace(
            trace,
            python=replace(trace.python, names=names),
            operators=replace(trace.operators, names=names),
            annotations=replace(trace.annotations, names=names),
            runtime=replace(trace.runtime, names=names),
            devices=tuple(replace(one, name=self.scrub(one.name)) for one in trace.devices),
        )

    def _forward(self, text: str) -> str:
        """Keep of a forward stack where it was; lines of source are dropped."""
        return "\n".join(
            f'File "{self.path(path)}", line {line}, in {self.function(name)}'
            for path, line, name in _FORWARD.findall(text)
        )

    def _sidecar(self, sidecar: Sidecar | None) -> Sidecar | None:
        if sidecar is None:
            return None
        devices = tuple(replace(one, name=self.scrub(one.name)) for one in sidecar.devices)
        message = None if sidecar.message is None else self.scrub(sidecar.message)
        torch = sidecar.torch if re.fullmatch(r"\d[\w.+-]{0,40}", sidecar.torch) else self.text(sidecar.torch)
        reason = sidecar.reason if sidecar.reason in _REASONS else self.text(sidecar.reason)
        conf = self.conf(sidecar.conf)
        return replace(sidecar, torch=torch, reason=reason, conf=conf, message=message, devices=devices)

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
        """Redact a snapshot as it stands in the file; parts that are shared stay shared.

        Raises:
            RecursionError: for what is nested deeper than any snapshot.

        """
        self._learn_all(_strings(document))
        return self._walk(document, "", {})

    def _walk(self, value: Any, key: str, done: dict[tuple[int, bool], Any]) -> Any:
        if isinstance(value, str):
            return self._value(key, value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, bytes | bytearray):
            return b""
        foreign = key == _FOREIGN
        known = done.get((id(value), foreign))
        if known is not None:
            return known
        if isinstance(value, dict):
            made: Any = {}
            done[id(value), foreign] = made
            # In frames a name is that of a function, elsewhere that of an annotation.
            inner = "function" if "filename" in value else "annotation"
            for name, item in value.items():
                plain = not foreign and _is_known(name)
                label = name if plain else self._digest("key", str(name))
                if type(item) is int:
                    made[label] = item
                    continue
                below = (inner if name == "name" else name) if plain else _FOREIGN
                made[label] = self._text(below, item) if type(item) is str else self._walk(item, below, done)
            return made
        if not isinstance(value, list | tuple):
            return None
        items = [self._walk(item, key, done) for item in value]
        made = tuple(items) if isinstance(value, tuple) else items
        done[id(value), foreign] = made
        return made

    def _text(self, key: str, value: str) -> str:
        """Replace one text, looked up where it was met before under the same key."""
        known = self._texts.get((key, value))
        if known is None:
            known = self._texts[key, value] = self._value(key, value)
        return known

    def _value(self, key: str, value: str) -> str:
        if key in _VALUES:
            return value if value in _VALUES[key] else self.text(value)
        if key.endswith("ALLOC_CONF"):
            return self.conf(value)
        change = {
            "filename": self.path,
            "function": self.function,
            "annotation": self.annotation,
            "compile_context": self._context,
            "forward_frames": self._forward,
        }.get(key, self.text)
        return change(value)


def _is_known(key: Any) -> bool:
    """Whether PyTorch writes a key; those of roundup_power2_divisions are numbers."""
    return isinstance(key, str) and (key in _KEYS or key.isdigit())


def _objects(values: list[str]) -> pd.Series:
    return pd.Series(values, dtype=object)


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


def _mapped(column: pd.Series, change: Callable[[str], str]) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.astype(object).map({text: change(str(text)) for text in column.cat.categories}).astype("category")
    return column.map({text: change(str(text)) for text in column.unique().tolist()})


def summary_of(counts: dict[str, int]) -> str:
    """Say how much was replaced: ``3 folders, 1 user, 2 annotations``."""
    return ", ".join(f"{count:,} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items()) or "nothing"
