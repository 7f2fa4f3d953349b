"""A trained agent behind a local page and the chat-completions protocol (``mempo ask --serve``).

``answering`` steps the engine in one thread and takes questions from all others, ``events`` brings
what happens to a request, ``access`` says who may ask, ``chat_request``, ``chat_reply`` and
``chat`` speak the protocol, ``document``, ``views`` and ``ask_page`` make the page, ``application``
puts both under one address, ``serve`` runs it, and ``options`` reads the command line.
"""
