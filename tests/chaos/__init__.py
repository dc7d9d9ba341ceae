"""Chaos: random faults against whole runs, with the example ledger and the weights as judges.

`life` is the program that suffers, `shape` how it is run, `team` the processes of one life.
`faults` befall processes, `damage` befalls files, on a `disk`. A `chain` puts lives together until
the run is done; `judge` compares it with an uninterrupted run; `ledger` counts the faults. Runs
under the launcher that lose workers and get them back are `elastic`.
"""
