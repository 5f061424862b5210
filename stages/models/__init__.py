"""Model families; a new model touches this folder, conf/pipeline and recipes only."""
