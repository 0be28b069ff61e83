"""What every step shares and no step is: files, errors, identity of the code, devices."""
