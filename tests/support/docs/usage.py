"""Synopses: every command and option that a ``usage`` block names is one that there is."""

from __future__ import annotations

import argparse
import importlib
import re

from tierlog.service.main import build_parser


def unknown_words(text: str) -> list[str]:
    """Commands and options of a synopsis that nothing takes; a line without a command goes on with the one before."""
    unknown: list[str] = []
    options: set[str] = set()
    for line in text.split("\n"):
        named = re.match(r"\s*(?:tierlog (?P<command>[\w-]+)|python -m (?P<module>[\w.]+))", line)
        if named is not None:
            found = _command(named["command"]) if named["command"] else _module(named["module"])
            if found is None:
                unknown.append(named[0])
            options = found or set()
        unknown += [word for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", line) if word not in options]
    return unknown


def _command(name: str) -> set[str] | None:
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction) and name in action.choices:
            return _options(action.choices[name])
    return None


def _module(name: str) -> set[str] | None:
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if not hasattr(module, "JOB"):
        return _options(module.parser())
    parser = argparse.ArgumentParser()
    module.JOB.add_arguments(parser)
    return _options(parser) | {"--master"}


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}
