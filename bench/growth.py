def run(*a): return []
def draw(*a): pass
