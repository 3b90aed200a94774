"""Run and report experiments: tables of tasks × methods × K × encoders × seeds.

`description` reads an experiment's file, `cells` lists its cells, `plan` turns them into `strap`
commands, `scheduler` runs these, and `reporting` writes tables and figures from the cells' folders.
"""
