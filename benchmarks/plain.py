"""FedLog's round as most people would write it: a loop over clients with DataLoader, nn.Module and optim.Adam.

It does the same work as one round of our engine (local epochs under a fixed head, statistics in evaluation mode, the
accuracy of every client under the new head), shares no code with it beyond the head's solution, and is what the block
backend is compared with.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.workloads import Workload
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Statistics


class Images(Dataset[tuple[Tensor, int]]):
    """Normalised images in memory, cropped and flipped one by one where the workload says so."""

    def __init__(self, images: Tensor, labels: Tensor, padding: int) -> None:
        self._images = nn.functional.pad(images, (padding,) * 4) if padding else images
        self._labels = labels
        self._padding = padding

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        image = self._images[at]
        if self._padding:
            row, column = torch.randint(0, 2 * self._padding + 1, (2,)).tolist()
            size = image.shape[-1] - 2 * self._padding
            image = image[:, row : row + size, column : column + size]
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
        return image, int(self._labels[at])


class PlainClient:
    """One client: its loaders and its model."""

    def __init__(self, workload: Workload, at: int, head: Tensor) -> None:
        shard = workload.federation.shards[at]
        prepare = workload.federation.transform.prepare
        train, test = workload.federation.train, workload.federation.test
        images, labels = prepare(train.inputs[shard.train]), train.labels[shard.train]
        padding = workload.federation.transform.crop_padding
        self.batches = DataLoader(Images(images, labels, padding), workload.batch_size, shuffle=True)
        self.records = DataLoader(Images(images, labels, 0), 500)
        self.tests = DataLoader(Images(prepare(test.inputs[shard.test]), test.labels[shard.test], 0), 500)
        self.body = workload.make_body()
        self.head = nn.Linear(workload.width, workload.federation.n_class)
        self.take(head)
        self.workload = workload

    def take(self, head: Tensor) -> None:
        """Copy the global head into the model and freeze it."""
        with torch.no_grad():
            self.head.bias.copy_(head[:, 0])
            self.head.weight.copy_(head[:, 1:])
        self.head.requires_grad_(False)

    def train(self) -> Tensor:
        """Train the local epochs, and return the statistics."""
        self.body.train()
        for _ in range(self.workload.epochs):
            optimiser = torch.optim.Adam(self.body.parameters(), lr=self.workload.learning_rate)
            for images, labels in self.batches:
                optimiser.zero_grad()
                nn.functional.cross_entropy(self.head(self.body(images)), labels).backward()
                optimiser.step()
        self.body.eval()
        sums = Statistics.zeros(self.workload.federation.n_class, 1 + self.workload.width)
        with torch.no_grad():
            for images, labels in self.records:
                sums = sums + Statistics.from_records(self.body(images), labels, sums.n_class)
        return sums.sums

    def accuracy(self) -> float:
        """The accuracy on the client's test records."""
        self.body.eval()
        right = total = 0
        with torch.no_grad():
            for images, labels in self.tests:
                right += int((self.head(self.body(images)).argmax(1) == labels).sum())
                total += len(labels)
        return right / total


class PlainLoop:
    """All clients in this process, with a number of threads for PyTorch."""

    def __init__(self, workload: Workload, threads: int) -> None:
        self._threads = threads
        head = workload.first_head()
        self._clients = [PlainClient(workload, at, head) for at in range(len(workload.federation.shards))]

    def round(self) -> tuple[float, float]:
        """Run one round; return its seconds and the mean accuracy."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        start = time.perf_counter()
        sums = sum((client.train() for client in self._clients[1:]), self._clients[0].train())
        accuracies = _judge(self._clients, sums)
        seconds = time.perf_counter() - start
        torch.set_num_threads(before)
        return seconds, sum(accuracies) / len(accuracies)

    def stop(self) -> None:
        """Do nothing: there are no processes to end."""


class PlainProcesses:
    """The plain loop with its clients split over processes, each with one thread."""

    def __init__(self, workload: Workload, processes: int) -> None:
        context = multiprocessing.get_context("fork")
        everyone = range(len(workload.federation.shards))
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, workload, everyone[number::processes]), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def round(self) -> tuple[float, float]:
        """Run one round; return its seconds and the mean accuracy."""
        start = time.perf_counter()
        self._tell(None)
        sums = sum(pipe.recv() for pipe in self._pipes)
        self._tell(sums)
        accuracies = [accuracy for pipe in self._pipes for accuracy in pipe.recv()]
        return time.perf_counter() - start, sum(accuracies) / len(accuracies)

    def _tell(self, value: Tensor | None) -> None:
        for pipe in self._pipes:
            pipe.send(value)

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(pipe: Connection, workload: Workload, mine: Sequence[int]) -> None:
    torch.set_num_threads(1)
    head = workload.first_head()
    clients = [PlainClient(workload, at, head) for at in mine]
    while True:
        pipe.recv()
        pipe.send(sum((client.train() for client in clients[1:]), clients[0].train()))
        pipe.send(_judge(clients, pipe.recv()))


def _judge(clients: list[PlainClient], sums: Tensor) -> list[float]:
    head = solve_head(Prior().posterior(Statistics(sums))).weights.to(torch.float32)
    for client in clients:
        client.take(head)
    return [client.accuracy() for client in clients]
