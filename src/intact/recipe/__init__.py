"""Recipes: every option declared once, and files of options.

How an option is declared: `declare.py`. The options: `groups.py` and `samples.py` (what several
commands share), `options.py`, `training.py` and `reports.py` (those of each command). Kinds of
values: `kinds.py`, `numbers.py`. `file.py`: recipe files; `commands.py`: flags by command, and
command lines; `budget.py`: the budget of a search.
"""
