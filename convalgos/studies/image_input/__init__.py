"""What the study of input measures: JPEG files, their way into a batch, the processes that go it."""
