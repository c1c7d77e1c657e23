"""Recipes: every option declared once, and files of options.

How an option is declared: `declare.py`. The options: `groups.py` and `samples.py` (what several
commands share), `options.py`, `training.py` and `reports.py` (those of each command). Kinds of
values, the budget of a search among them: `kinds.py`, `numbers.py`. Recipe files:
`file.py`. Flags by command, and command lines: `commands.py`.
"""
