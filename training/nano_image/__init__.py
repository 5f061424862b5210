"""nano-image: a small model in Qwen-Image's layout that draws things, shapes, colours and backgrounds from a prompt."""
