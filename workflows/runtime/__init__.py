"""What all steps share: files, errors, devices, processes, the identity of the code."""
