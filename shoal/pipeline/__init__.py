"""Sequences into tokens: the tokenizer, the scheduler, and the driver that feeds the stages."""
