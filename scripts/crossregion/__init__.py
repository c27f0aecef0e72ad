"""A limit that three regions share: what each way to do that costs and promises, measured on real programs."""
