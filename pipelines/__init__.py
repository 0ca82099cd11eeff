"""The jobs, one file an arrow of the data flow; ``end_to_end`` runs them in order."""
