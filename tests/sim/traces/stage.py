"""A little profile directory and workload in the format of the Pollux artifact, written
on the spot.
"""

from pathlib import Path

WORKLOAD = "name,time,application,num_replicas,batch_size\nm-0,0,m,1,8\nm-1,60,m,2,16\n"


def write_profiles(folder: Path, *names: str) -> Path:
    """Write applications `names` (default: m): 2 epochs, batches 8 and 16, up to two
    nodes of 2 GPUs.
    """
    for name in names or ("m",):
        directory = folder / name
        directory.mkdir(parents=True)
        (directory / "placements.csv").write_text(
            "placement,local_bsz,step_time,sync_time\n"
            "1,4,1.0,0.0\n1,16,4.0,0.0\n"
            "2,4,1.5,0.5\n2,16,4.5,0.5\n"
            "11,4,2.0,1.0\n11,16,5.0,1.0\n"
            "12,4,2.5,1.5\n12,16,5.5,1.5\n"
            "22,4,3.0,2.0\n22,16,6.0,2.0\n"
        )
        (directory / "scalability.csv").write_text(
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
            "6,6,4,3.0,2.0\n6,6,16,6.0,2.0\n6,12,4,4.0,3.0\n6,12,16,7.0,3.0\n"
        )
        columns = "progress,iteration,metric,grad_sqr,grad_var\n"
        (directory / "validation-8.csv").write_text(
            columns + "100,100,0.5,1.0,1.0\n200,200,0.6,0.5,1.0\n"
        )
        (directory / "validation-16.csv").write_text(
            columns + "101,80,0.5,2.0,3.0\n199,150,0.6,1.0,3.0\n"
        )
    return folder


def write_workload(folder: Path, text: str = WORKLOAD, name: str = "w.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path
