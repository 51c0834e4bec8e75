from .network import *
