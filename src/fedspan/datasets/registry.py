"""Which sets there are, where each comes from, and in what form.

Addresses are those their publishers, or widely used loaders, give; none was fetched when this was written, and an
address that has moved is an error that names it. Checksums are pinned where the publisher, scikit-learn, torchvision
or TensorFlow Datasets states one.
The others are recorded at the first download (see `fedspan.datasets.download`), and a warning says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fedspan.datasets import formats
from fedspan.datasets.entry import UNSTATED, Entry, RemoteFile
from fedspan.errors import ConfigurationError, nearest

LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
LIGHTGCN_PAGE = "https://github.com/gusye1234/LightGCN-PyTorch"
LIGHTGCN = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"
UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
CIFAR = "https://www.cs.toronto.edu/~kriz"
LEAF = "https://github.com/TalwalkarLab/leaf/tree/master/data/femnist"
MOTES = "https://www.cs.cmu.edu/afs/cs/project/spirit-1/www/data/Motes.zip"


def find(name: str) -> Entry:
    """Entry of this name; hyphens, underscores and case do not matter."""
    known = {_plain(entry): entry for entry in ENTRIES}
    if _plain(name) not in known:
        raise ConfigurationError(f"there is no dataset named {name!r}; {nearest(name, ENTRIES)}")
    return ENTRIES[known[_plain(name)]]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _libsvm(name: str, shape: tuple[int, int], *paths: str, dense: bool = False, notes: str = "") -> Entry:
    return Entry(
        name,
        source=f"{LIBSVM}/",
        files=tuple(RemoteFile(f"{LIBSVM}/{path}") for path in paths),
        parse=partial(formats.libsvm, n_features=shape[1], dense=dense),
        shape=shape,
        notes=notes,
    )


def _idx(name: str, base: str, source: str, licence: str, md5: tuple[str, str, str, str]) -> Entry:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = (RemoteFile(f"{base}{stem}-ubyte.gz", f"md5:{sum_}") for stem, sum_ in zip(stems, md5, strict=True))
    return Entry(name, source, tuple(files), formats.idx_images, (60000, 784), licence, "28 x 28 images, 0 to 255")


def _interactions(name: str, shape: tuple[int, int]) -> Entry:
    files = tuple(RemoteFile(f"{LIGHTGCN}/{name}/{part}.txt") for part in ("train", "test"))
    parse = partial(formats.adjacency_lists, shape=shape)
    return Entry(
        name,
        LIGHTGCN_PAGE,
        files,
        parse,
        shape,
        notes="0/1 user-item interactions; X_test holds the held-out ones",
    )


def _motes(name: str, member: str, d: int) -> Entry:
    parse = partial(formats.table_in_zip, member=member)
    return Entry(
        name,
        MOTES,
        (RemoteFile(MOTES),),
        parse,
        (7712, d),
        notes=f"sensor stream, rows in time order ({member})",
    )


def _cifar10(name: str, batches: int, n_test: int | None) -> Entry:
    train = tuple(f"data_batch_{i}.bin" for i in range(1, batches + 1))
    return Entry(
        name,
        f"{CIFAR}/cifar.html",
        (RemoteFile(f"{CIFAR}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),),
        partial(formats.cifar, train=train, test="test_batch.bin", label_bytes=1, n_test=n_test),
        (10000 * batches, 3072),
        notes="32 x 32 x 3 images, colours last, 0 to 255",
    )


def _bundled(name: str, page: str) -> Entry:
    return Entry(
        name,
        source=page,
        bundled=f"load_{name}",
        licence="shipped with scikit-learn (BSD 3-Clause)",
        notes="comes with scikit-learn; no network needed",
    )


_COVTYPE_COLUMNS = (
    *("elevation", "aspect", "slope", "horizontal_distance_to_hydrology", "vertical_distance_to_hydrology"),
    *("horizontal_distance_to_roadways", "hillshade_9am", "hillshade_noon", "hillshade_3pm"),
    "horizontal_distance_to_fire_points",
    *(f"wilderness_{i}" for i in range(4)),
    *(f"soil_{i}" for i in range(40)),
)
_WINE_COLUMNS = (
    *("fixed_acidity", "volatile_acidity", "citric_acid", "residual_sugar", "chlorides"),
    *("free_sulfur_dioxide", "total_sulfur_dioxide", "density", "ph", "sulphates", "alcohol"),
)
_HOUSING_COLUMNS = (
    "crim",
    "zn",
    "indus",
    "chas",
    "nox",
    "rm",
    "age",
    "dis",
    "rad",
    "tax",
    "ptratio",
    "b",
    "lstat",
)
_SCALED = "LIBSVM's scaled version"

_ALL = (
    # FedPower, Table 1
    _libsvm("a9a", (32561, 123), "binary/a9a", "binary/a9a.t", notes="0/1 features"),
    _libsvm("w8a", (49749, 300), "binary/w8a", "binary/w8a.t", notes="0/1 features"),
    _libsvm("ijcnn1", (49990, 22), "binary/ijcnn1.bz2", "binary/ijcnn1.t.bz2", dense=True),
    _libsvm("connect-4", (67557, 126), "multiclass/connect-4", notes="0/1 features"),
    _libsvm("aloi", (108000, 128), "multiclass/aloi.scale.bz2", dense=True, notes=_SCALED),
    *(
        _libsvm(
            name,
            (78823, d),
            *(f"multiclass/vehicle/{name}_scale{end}" for end in (".bz2", ".t.bz2")),
            dense=True,
            notes=f"{_SCALED} of SensIT Vehicle",
        )
        for name, d in (("acoustic", 50), ("combined", 100))
    ),
    replace(
        _libsvm("housing_scale", (506, 13), "regression/housing_scale", dense=True, notes="scaled to [-1, 1]"),
        columns=_HOUSING_COLUMNS,
    ),
    Entry(
        "covtype",
        "https://archive.ics.uci.edu/dataset/31/covertype",
        (
            RemoteFile(
                f"{UCI}/covtype/covtype.data.gz",
                "sha256:614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
                mirrors=("https://ndownloader.figshare.com/files/5976039",),
            ),
        ),
        formats.covtype,
        (581012, 54),
        licence="CC BY 4.0",
        notes="raw values, unscaled; two groups of 0/1 columns at the end",
        columns=_COVTYPE_COLUMNS,
    ),
    # FedPower, FPCA, FAPS, SRPFL: images
    _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
        UNSTATED,
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    _idx(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    _cifar10("cifar10", 5, None),
    _cifar10("cifar10_subset", 1, 2000),
    Entry(
        "cifar100",
        f"{CIFAR}/cifar.html",
        (RemoteFile(f"{CIFAR}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),),
        partial(formats.cifar, train=("train.bin",), test="test.bin", label_bytes=2),
        (50000, 3072),
        notes="32 x 32 x 3 images, colours last; y is the fine label, extras hold the coarse one",
    ),
    Entry(
        "emnist",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        (RemoteFile("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e"),),
        formats.emnist,
        (112800, 784),
        notes="the balanced split, 47 classes, images turned upright; the archive is about half a gigabyte",
    ),
    Entry(
        "femnist",
        LEAF,
        parse=formats.leaf_images,
        notes="handwritten characters, 62 classes; extras: site and site_test, the writer of each row",
        by_hand=f"LEAF prepares it from the raw files ({LEAF}, preprocess.sh -t sample). Put its .json files into "
        "$FEDSPAN_DATA/femnist/train and $FEDSPAN_DATA/femnist/test; or put a femnist.npz into $FEDSPAN_DATA with the "
        "arrays X (n, d), y (n,) and site (n,), the writer of each row; and X_test, y_test, site_test where there is "
        "a test part",
        local=("train/*.json", "test/*.json"),
    ),
    Entry(
        "sent140",
        "http://help.sentiment140.com/for-students",
        (
            RemoteFile(
                "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
                "sha256:004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
            ),
        ),
        formats.tweets,
        (1_600_000, formats.TWEET_WORDS),
        notes=f"tweets, each as {formats.TWEET_WORDS} numbers of words: 0 fills up, 1 is any word but the "
        f"{formats.VOCABULARY - 2} most frequent ones; y is 1 where positive; extras: words, and site, the user",
    ),
    # PPM, Table 1
    _interactions("gowalla", (29858, 40981)),
    _interactions("yelp2018", (31668, 38048)),
    _interactions("amazon-book", (52643, 91599)),
    # FPCA, appendix D.2
    Entry(
        "wine_red",
        "https://archive.ics.uci.edu/dataset/186/wine+quality",
        (RemoteFile(f"{UCI}/wine-quality/winequality-red.csv"),),
        formats.wine_csv,
        (1599, 11),
        licence="CC BY 4.0",
        columns=_WINE_COLUMNS,
    ),
    _motes("motes_light", "q8calibLight.dat", 48),
    _motes("motes_humidity", "q8calibHumid.dat", 48),
    _motes("motes_temperature", "q8calibHumTemp.dat", 56),
    _motes("motes_voltage", "q8calibVolt.dat", 46),
    Entry(
        "hapmap3",
        "https://www.genome.gov/10001688/international-hapmap-project",
        notes="minor-allele dosages 0, 1, 2; missing calls are nan; extras: ids, pop, chrom, pos, a1, a2",
        by_hand="Put hapmap3.npz into $FEDSPAN_DATA with the arrays G (persons, SNPs; int8 dosage, -1 for a "
        "missing call), ids and pop (persons,), snp, chrom, pos, a1 and a2 (SNPs,)",
    ),
    # for demos
    _bundled("digits", "https://archive.ics.uci.edu/dataset/80"),
    _bundled("breast_cancer", "https://archive.ics.uci.edu/dataset/17"),
    _bundled("wine", "https://archive.ics.uci.edu/dataset/109/wine"),
    _bundled("diabetes", "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html"),
    _bundled("iris", "https://archive.ics.uci.edu/dataset/53/iris"),
)

ENTRIES = {entry.name: entry for entry in _ALL}
