"""The forgetting report: which facts memories hold on to, and which wrong answers follow from lost
ones.

``python -m mempo.forgetting RUN_FOLDER`` reads the trajectories of the generated world's tasks,
which ``train.py`` and ``evaluate.py`` write, and prints tables; docs/evaluation.md explains them.
"""
