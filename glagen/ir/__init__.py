"""The nouns of the compiler. Stages meet only here."""
