"""What the study of training measures: networks, their training steps, their layers, their memory."""
