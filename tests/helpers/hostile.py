"""An object that does harm when it is unpickled: nothing that loads a file may do that."""

import os


class Hostile:
    def __reduce__(self):
        return (os.mkdir, ("hacked",))
