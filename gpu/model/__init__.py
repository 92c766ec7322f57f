"""A Llama-architecture model: configuration, weight files and packed weights."""
