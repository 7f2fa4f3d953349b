"""MemPO: language-model agents that write their own memory, trained with Lightning."""
