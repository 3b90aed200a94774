"""Tables of tasks × methods × K × encoders × seeds, run as `strap` commands and reported.

`description` reads the file, `cells` lists what it asks for, `plan` turns that into commands,
`scheduler` runs them, `reporting` writes tables and figures from the cells' folders alone.
"""
