//! A `libnvidia-ml.so` for tests: the functions that the exporter calls, on boards described by a file.
