"""How the embedded default models are made: data, training, packing, scoring. Nothing of the product imports this."""
