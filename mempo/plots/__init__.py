"""Pictures for papers, of one or several runs (``python -m mempo.plots``).

``runs`` reads run folders and puts those together that differ in their seed only; ``pictures``
draws them.
"""
