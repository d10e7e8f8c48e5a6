"""Divide what is shipped into parcels that the carrier accepts."""

MOST_GRAMS = 10_000
WRAPPING_GRAMS = 150


def pack(weights):
    """Return parcels as lists of weights, the heaviest piece first; each is placed where it still fits."""
    parcels = []
    for grams in sorted(weights, reverse=True):
        if grams + WRAPPING_GRAMS > MOST_GRAMS:
            raise ValueError(f"a piece of {grams} g is too heavy for any parcel")
        for parcel in parcels:
            if gross(parcel) + grams <= MOST_GRAMS:
                parcel.append(grams)
                break
        else:
            parcels.append([grams])
    return parcels


def gross(parcel):
    """The weight of a parcel with its wrapping."""
    return sum(parcel) + WRAPPING_GRAMS
