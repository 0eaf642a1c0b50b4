"""Small tasks that small models can tell apart, trained and scored in minutes on a CPU.

Recall (`mqar`, `copying`, `recall`) compares architectures; state tracking (`groups`) compares transitions of Gated
DeltaNet: how many Householder steps a token, and whether they may reflect (β up to 2). `tasks` is the table of them,
`models` what is trained, `train` how, `suite` runs all of it, `report` and `figure` show it.
"""
