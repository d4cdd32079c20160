"""glagen's ops under the names and signatures of other libraries."""
