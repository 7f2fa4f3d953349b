"""The data formats of specification section 11: one module each, and their registry."""

from __future__ import annotations

from mempo.data.formats.loading import FORMATS, DataFormat, Loaded, load_questions
from mempo.data.formats.row import Options, QuestionSource

__all__ = ["FORMATS", "DataFormat", "Loaded", "Options", "QuestionSource", "load_questions"]
