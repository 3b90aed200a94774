"""The transformer policy: a token per observed frame, a Gaussian mixture per predicted action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strap.policies.batch import Batch
from strap.policies.mixture import Mixture, MixtureHead
from strap.policies.observation import ObservationEncoder
from strap.policies.settings import Interface, PolicySettings


class Block(nn.Module):
    """A transformer block: pre-LN attention and a GELU MLP, each with a residual connection."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__()
        width = settings.width
        self.heads, self.dropout = settings.heads, settings.dropout
        self.attention_dropout = settings.attention_dropout
        self.causal = settings.attention == "causal"
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=settings.qkv_bias)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [b t w] to [b t w]."""
        x = x + self._drop(self.attend(self.norm1(x)))
        return x + self._drop(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor) -> Tensor:
        """Apply self-attention: [b t w] -> [b t w]."""
        clips, tokens, width = x.shape
        parts = self.qkv(x).view(clips, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attention_dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        mixed: Tensor = self.out(attended.transpose(1, 2).reshape(clips, tokens, width))
        return mixed

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class TransformerPolicy(nn.Module):
    """π(a_t … a_{t+c−1} | o_{t−h+1} … o_t, instruction): action i is read from token i."""

    def __init__(self, interface: Interface, settings: PolicySettings) -> None:
        super().__init__()
        self.interface, self.settings = interface, settings
        width = settings.width
        self.observation = ObservationEncoder(interface, settings)
        self.embed = nn.Linear(self.observation.size, width)
        self.position = nn.Parameter(torch.zeros(settings.history, width))
        self.norm_in, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.head = MixtureHead(width, interface.action_size, settings.modes, settings.min_std)
        is_all_normal = settings.initial == "normal"
        normal: list[nn.Module] = list(self.blocks.modules())
        if is_all_normal:
            normal = [self.embed, *normal, *self.head.modules()]
        for module in normal:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if is_all_normal:
            nn.init.normal_(self.position, std=0.02)

    def mixture(self, features: Tensor) -> Mixture:
        """Return a mixture for each action [b c …], from the frames' features [b h f]."""
        x = self.norm_in(self.embed(features) + self.position)
        x = F.dropout(x, self.settings.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        mixture: Mixture = self.head(self.norm_out(x[:, : self.settings.chunk]))
        return mixture

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean −log π of the valid actions."""
        features = self.observation(batch.images, batch.proprioception, batch.language)
        wanted = self.observation.scale_actions(batch.actions)
        log_prob = self.mixture(features).log_prob(wanted)
        valid = batch.valid.to(log_prob.dtype)
        return -(log_prob * valid).sum() / valid.sum().clamp(min=1)

    forward = loss

    def predict(
        self, features: Tensor, generators: Sequence[torch.Generator] | None = None
    ) -> Tensor:
        """Return the actions [b c a] to execute, for features [b h f]."""
        mixture = self.mixture(features)
        if self.settings.acting == "mode":
            return self.observation.restore_actions(mixture.most_likely())
        drawn = mixture.sample(self.settings.acting_std, generators)
        return self.observation.restore_actions(drawn)
