"""Grammars of structured outputs: tried in a process that can be ended, before the engine has them.

A client's JSON schema, regular expression or grammar is a program for xgrammar, and a few kilobytes
can keep it busy for minutes and fill the memory. Upstream compiles them in the engine's process,
and converts them first on the server's event loop. Here the event loop converts nothing
(`params`), and the engine compiles only (`backend`) what another process has compiled before within
limits of time and memory (`trials`, `process`).
"""
