#!/usr/bin/env python3
"""Fails when modules beside each other import each other in a circle. Reads paths of modules as text: a re-export counts as its own module,
and tests do not count."""

import collections
import pathlib
import re
import sys

# A path, or what a `use` takes of one: `crate::a::{b, c::d}`.
PATH = re.compile(r"\b(?:crate|self|super)(?:::\w+)*(?:::\{)?")
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))? )?mod \w+ \{")


def names(words):
    """Every path up to the `}` that closes the list, as lists of names."""
    here = []
    for word in words:
        if word == "{":
            yield from ([*here, *rest] for rest in names(words))
            here = []
        elif word in (",", "}", ";"):
            yield here
            here = []
            if word != ",":
                return
        elif word != "::":
            here.append(word)


def paths(text):
    for match in PATH.finditer(text):
        head = match.group().removesuffix("::{").split("::")
        words = re.compile(r"\w+|::|[{},;]").finditer(text, match.end())
        for rest in names(word.group() for word in words) if match.group().endswith("{") else [[]]:
            yield head + rest


def resolved(path, here):
    """The path from the root of the crate; `here` is the module that says it."""
    while path and path[0] in ("crate", "self", "super"):
        here = {"crate": (), "self": here, "super": here[:-1]}[path[0]]
        path = path[1:]
    return (*here, *path)


def arrows(source):
    """From each module to its siblings, by parent."""
    files = {}
    for file in source.rglob("*.rs"):
        module = file.relative_to(source).with_suffix("").parts
        module = module[:-1] if module[-1] in ("mod", "lib", "main") else module
        if not any("test" in name for name in module):
            text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
            tests = TESTS.search(text)
            files[module] = files.get(module, "") + (text[: tests.start()] if tests else text)
    modules = {module[:length] for module in files for length in range(len(module) + 1)}
    edges = collections.defaultdict(lambda: collections.defaultdict(set))
    for module, text in files.items():
        for path in paths(text):
            target = resolved(path, module)
            while target not in modules:
                target = target[:-1]
            same = 0
            while same < min(len(module), len(target)) and module[same] == target[same]:
                same += 1
            if same < len(module) and same < len(target):
                edges[module[:same]][module[same]].add(target[same])
    return edges


def circles(edges):
    """Sets of names, each of which reaches all others."""
    reached = {}
    for name in edges:
        reached[name], open_ = set(), [name]
        while open_:
            for other in edges.get(open_.pop(), ()):
                if other not in reached[name]:
                    reached[name].add(other)
                    open_.append(other)
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in edges}
    return sorted((group for group in groups if len(group) > 1), key=min)


def main():
    found = []
    for source in sorted(pathlib.Path("service").glob("**/src")):
        if (source.parent / "Cargo.toml").exists():
            for parent, edges in sorted(arrows(source).items()):
                found += [f"{'/'.join((str(source), *parent))}: {' '.join(sorted(group))}" for group in circles(edges)]
    for line in found:
        print(f"error: these modules import each other: {line}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
