"""Recipes: every option declared once, and files of options.

Every option, declared once: name, type, default, help, check (`groups.py`, `options.py`,
`reports.py`); kinds of values (`kinds.py`, `numbers.py`); recipe files (`file.py`); the budget of a
search (`budget.py`).
"""
