"""The run inspector: one self-contained page of what a run did (``python -m mempo.inspect``).

``reading`` reads a run folder, ``selection`` decides which trajectories the page holds,
``differences`` compares memories, ``views`` puts everything into the form that the page's script
reads, ``curves`` draws, ``document`` writes the page and ``server`` shows it while a run goes on.
"""
