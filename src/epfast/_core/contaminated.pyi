from epfast._core.loss import CoreLoss
from epfast._core.tilted import SiteScheme, TiltedMoments

def contaminated(base: CoreLoss, keep: float, lose: float, margin: bool) -> CoreLoss: ...

class ContaminatedMoments(SiteScheme):
    def __init__(self, loss: CoreLoss, base: TiltedMoments) -> None: ...
