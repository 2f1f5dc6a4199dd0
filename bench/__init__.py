"""One script per table or figure of the papers and per claim about speed: ``python -m bench``."""

#: scripts, in the order in which they are listed, and the name under which each stores its results
SCRIPTS = {
    "roche2016.table1": "table1",
    "roche2016.figures2_3": "figures2_3",
    "li2015.table1": "li2015_table1",
    "li2015.toy": "li2015_toy",
    "li2015.mnist": "li2015_mnist",
    "li2015.memory": "li2015_memory",
    "li2015.sampling": "li2015_sampling",
    "li2015.networks": "li2015_networks",
    "li2015.mixture": "li2015_mixture",
    "smola2003.table1": "smola2003_table1",
    "smola2003.tables2_3": "smola2003_tables2_3",
    "smola2003.graph": "smola2003_graph",
    "qi2012.synthetic": "qi2012_synthetic",
    "qi2012.five_points": "qi2012_five_points",
    "qi2012.uci": "qi2012_uci",
    "qi2012.figure1": "qi2012_figure1",
    "jitkrittum2015.batch": "jitkrittum2015_batch",
    "jitkrittum2015.features": "jitkrittum2015_features",
    "jitkrittum2015.uncertainty": "jitkrittum2015_uncertainty",
    "jitkrittum2015.compound_gamma": "jitkrittum2015_compound_gamma",
    "jitkrittum2015.online": "jitkrittum2015_online",
    "jitkrittum2015.uci": "jitkrittum2015_uci",
    "certificates.check": "certificates_check",
    "speed.linear": "linear_speed",
    "speed.against_numpy": "against_numpy",
    "speed.gp": "gp_speed",
    "speed.sparse": "sparse_speed",
    "speed.factorized": "factorized_sweeps",
    "likelihoods.several_classes": "several_classes",
    "likelihoods.correlated_classes": "correlated_classes",
    "likelihoods.peers": "likelihood_peers",
    "graph.ratings": "ratings",
    "graph.categories": "categories",
    "dask.accept": "dask_accept",
    "dask.order": "dask_order",
    "history.revisions": "history",
    "users.defaults": "defaults",
    "users.peers": "user_peers",
    "hyper.posteriordb": "posteriordb",
    "hyper.hierarchical": "hierarchical",
    "hyper.mixed": "mixed",
}


def full_name(name: str) -> str:
    """Return the script that a name means; one without its folder is the first of that name.

    Raises
    ------
    ValueError
        There is no such script.
    """
    for script in SCRIPTS:
        if name in (script, script.partition(".")[2]):
            return script
    raise ValueError(f"no script {name!r}; those there are: {', '.join(SCRIPTS)}")


def scripts(name: str) -> list[str]:
    """Return the scripts that a name means: those of a folder, or one.

    Raises
    ------
    ValueError
        There is no such script.
    """
    folder = [script for script in SCRIPTS if script.partition(".")[0] == name]
    return folder or [full_name(name)]
