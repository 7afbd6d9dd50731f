def write(program, work):
    pass
